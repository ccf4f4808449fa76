// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"

	"golang.org/x/mod/semver"
)

// heading is that of a version in CHANGELOG.md, with the version and the date.
var heading = regexp.MustCompile(`(?m)^## \[([^\]]+)\](?: - (\d{4}-\d{2}-\d{2}))?[ \t]*$`)

// notesOf are what the changelog says of a version. It is an error if that cannot be released: it is no version, or the
// changelog has no section of it with a date and entries.
func notesOf(version, changelog string) (string, error) {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return "", fmt.Errorf("%q is not a version: use one such as v0.1.0 or v0.2.0-rc.1, as in make release VERSION=v0.1.0", version)
	}
	name := strings.TrimPrefix(version, "v")
	sections := heading.FindAllStringSubmatchIndex(changelog, -1)
	for i, at := range sections {
		if changelog[at[2]:at[3]] != name {
			continue
		}
		if at[4] < 0 {
			return "", fmt.Errorf("the section of %s in CHANGELOG.md has no date: write \"## [%s] - YYYY-MM-DD\"", version, name)
		}
		end := len(changelog)
		if i+1 < len(sections) {
			end = sections[i+1][0]
		}
		notes := strings.TrimSpace(changelog[at[0]:end]) + "\n"
		if !strings.Contains(notes, "\n- ") {
			return "", fmt.Errorf("the section of %s in CHANGELOG.md has no entries", version)
		}
		return notes, nil
	}
	return "", fmt.Errorf("CHANGELOG.md has no section of %s: rename [Unreleased] to \"[%s] - YYYY-MM-DD\"", version, name)
}
