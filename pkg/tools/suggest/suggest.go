// SPDX-License-Identifier: Apache-2.0

package suggest

import "strings"

// Nearest is the name that is most like another one; empty where none is. Case does not count, and a name may be the beginning of a
// longer one, as mem is of memory.
func Nearest(name string, of []string) string {
	best, least := "", max(1, min(2, len(name)/3))+1 // of short names, one letter makes another word
	lower := strings.ToLower(name)
	for _, candidate := range of {
		if candidate == name {
			continue
		}
		if d := Distance(lower, strings.ToLower(candidate)); d < least {
			best, least = candidate, d
		}
	}
	const begins = 3 // fewer letters begin too many names
	if best != "" || len(name) < begins {
		return best
	}
	for _, candidate := range of {
		if candidate != name && strings.HasPrefix(strings.ToLower(candidate), lower) && (best == "" || len(candidate) < len(best)) {
			best = candidate
		}
	}
	return best
}

// Question asks after a message whether names were meant; it is empty without any.
func Question(names ...string) string {
	var some []string
	for _, n := range names {
		if n != "" {
			some = append(some, n)
		}
	}
	if len(some) == 0 {
		return ""
	}
	return ": did you mean " + strings.Join(some, " or ") + "?"
}

// Distance is how many letters are to be put in, taken out or changed to make one name of another.
func Distance(a, b string) int {
	before := make([]int, len(b)+1)
	for j := range before {
		before[j] = j
	}
	for i := range len(a) {
		now := make([]int, len(b)+1)
		now[0] = i + 1
		for j := range len(b) {
			change := before[j]
			if a[i] != b[j] {
				change++
			}
			now[j+1] = min(change, before[j+1]+1, now[j]+1)
		}
		before = now
	}
	return before[len(b)]
}
