// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// placeholder is what stands in documented messages for names and numbers.
var placeholder = regexp.MustCompile(`…|\bby a\b|libnvidia-ml\.so\.1|\b[A-Z]\b(:[A-Z]\b)?|\b15s\b|\bLong\b|\bEXCLUSIVE_PROCESS\b|\bGPU-|/dev/nvidia[-a-zA-Z]*`)

// notOurs are documented messages of Kubernetes and of the kernel.
var notOurs = []string{"cannot allocate all claims", "fetch ResourceClaim", "no relationship found between node", "DRA driver gpu.cleave.dev is not registered",
	"no space left on device", "PROHIBITED", "FailedKillPod"}

// documentedMessages are the words in code of the first column of tables about symptoms, without placeholders.
func documentedMessages(t *testing.T, file string) []string {
	t.Helper()
	data := readFile(t, file)
	var all []string
	isSymptom := false
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "| ") {
			isSymptom = false
			continue
		}
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		if slices.Contains([]string{"symptom", "message", "Event", "Event or state"}, cell) {
			isSymptom = true
		}
		if !isSymptom {
			continue
		}
		for _, span := range codeSpan.FindAllStringSubmatch(cell, -1) {
			for _, part := range placeholder.Split(span[1], -1) {
				if part = strings.Trim(part, " :,()"); len(part) >= 5 && !slices.ContainsFunc(notOurs, func(s string) bool { return strings.Contains(part, s) }) {
					all = append(all, part)
				}
			}
		}
	}
	return all
}

// sources is the text of all Go files that are not tests.
func sources(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range []string{"api", "pkg"} {
		err := filepath.WalkDir(filepath.Join(source, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			b.Write(data)
			return err
		})
		must(t, err)
	}
	return b.String()
}

// Who searches the documentation for a message finds it only if its words are those of the code.
func TestDocs_MessagesExist(t *testing.T) {
	code := sources(t)
	const name = "docs/troubleshooting.md"
	messages := documentedMessages(t, filepath.Join(source, name))
	if len(messages) < 5 {
		t.Errorf("%s: only %d messages were found", name, len(messages))
	}
	for _, message := range messages {
		if !strings.Contains(code, message) {
			t.Errorf("%s: no message has the words %q", name, message)
		}
	}
}
