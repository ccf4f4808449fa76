// SPDX-License-Identifier: Apache-2.0

// Package admission checks what authors write before it is stored: the same checks that Prepare makes, as far as they can
// be made without an allocation, so that a mistake is reported to its author and not to a pod that waits.
package admission
