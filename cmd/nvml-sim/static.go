// SPDX-License-Identifier: Apache-2.0

//go:build !nvmlsimdynamic

package main

// loadManagementLibrary does nothing: a program that is linked statically needs no library.
func loadManagementLibrary(string) error { return nil }
