// SPDX-License-Identifier: Apache-2.0

// Package claimstatus writes to each prepared claim what its devices are: UUIDs, MIG instances, amounts (status.devices,
// KEP-4817).
package claimstatus
