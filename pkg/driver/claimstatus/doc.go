// SPDX-License-Identifier: Apache-2.0

// Package claimstatus writes the device data of each prepared claim: UUIDs, MIG instances, amounts (status.devices, KEP-4817).
package claimstatus
