// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"strings"
)

// DefaultVersion is the Kubernetes version that runs when none is chosen.
const DefaultVersion = "1.37.2"

// VersionVariable names the environment variable that chooses the Kubernetes
// version where the program does not.
const VersionVariable = "K8S_VERSION"

// versions are the Kubernetes versions that have a module below
// e2e/kubernetes, newest first.
var versions = []string{DefaultVersion, "1.36.4", "1.35.4", "1.34.4"}

// Versions lists the Kubernetes versions that can be run, newest first.
func Versions() []string { return slices.Clone(versions) }

// parseVersion checks a version as a person writes it, with or without a
// leading v, and returns it without.
func parseVersion(s string) (string, error) {
	v := strings.TrimPrefix(strings.TrimSpace(s), "v")
	if !slices.Contains(versions, v) {
		return "", fmt.Errorf("choose Kubernetes version %q: valid versions are %s", s, strings.Join(versions, ", "))
	}
	return v, nil
}

// minorOf returns "1.37" for "1.37.2".
func minorOf(version string) string {
	return version[:strings.LastIndex(version, ".")]
}
