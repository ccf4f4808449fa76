// SPDX-License-Identifier: Apache-2.0

// Package shortform reads the short form of a claim, such as "4 gpus, 48 cpus, 4 nics, one numa node", and writes its
// ResourceClaimTemplate.
package shortform
