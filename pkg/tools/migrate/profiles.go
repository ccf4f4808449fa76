// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	_ "embed"
	"strings"
)

// profileList has the MIG profiles of all boards that Cleave knows, a name on each line; hack/gen-deviceclasses writes it.
//
//go:embed profiles.txt
var profileList string

// knownProfiles are the names of the profiles that boards offer, by size.
func knownProfiles() []string { return strings.Fields(profileList) }

// migResource is the resource that the device plugin, with strategy mixed, has for a profile.
func migResource(profile string) string {
	return resourcePrefix + "mig-" + strings.ReplaceAll(profile, "+", ".")
}
