// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"encoding/json"
	"testing"
)

// The status of a claim can have been written by another release, or by who may write any.
func FuzzNormal(f *testing.F) {
	f.Add([]byte(`{"uuid":"GPU-1"}`))
	f.Add([]byte(`{"uuid":"GPU-1","later":true}`))
	f.Add([]byte(`null`))
	f.Add([]byte("{\"uuid\":\"\xff\"} {}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		text := normal(raw)
		if text == "" {
			return
		}
		if !json.Valid([]byte(text)) || normal([]byte(text)) != text {
			t.Errorf("%q is read as %q, and that as %q", raw, text, normal([]byte(text)))
		}
	})
}
