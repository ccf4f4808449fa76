// SPDX-License-Identifier: Apache-2.0

// Package fakedriver is a DRA driver in memory, with an API server in memory, that can be wrong in one way at a time. The
// suite is tested with it: a case that no fault fails would say nothing.
package fakedriver
