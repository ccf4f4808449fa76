// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// maxDocuments bounds the documents of one file.
const maxDocuments = 256

// Document is one of the YAML or JSON documents of a file.
type Document struct {
	// Line of the file on which the document starts, from 1.
	Line int
	// JSON of the document; nil if Err is set.
	JSON []byte
	Err  error
}

// boundary matches exactly the lines that start or end a document for a YAML parser. Inside text it cannot be at the start of a
// line.
var boundary = regexp.MustCompile(`(?m)^(---|\.\.\.)([ \t\r].*)?$`)

// blank is a document without content: comments and marks.
var blank = regexp.MustCompile(`^(\s|#.*(\n|$)|(---|\.\.\.)[ \t\r]*(#.*)?(\n|$))*$`)

// Documents splits a file of YAML or JSON, at most 1 MiB and 256 documents; empty documents are left out. A document that is not
// YAML has its own error, which names the line in the file.
func Documents(data []byte) ([]Document, error) {
	switch {
	case len(data) > maxSize:
		return nil, fmt.Errorf("%d bytes are more than %d", len(data), maxSize)
	case !utf8.Valid(data):
		return nil, errors.New("read YAML: it is no UTF-8 text")
	}
	if json.Valid(data) {
		return []Document{{Line: 1, JSON: data}}, nil // JSON allows tabs where YAML does not
	}
	var documents []Document
	line := 1
	for _, piece := range pieces(data) {
		if !blank.Match(piece) {
			if len(documents) == maxDocuments {
				return nil, fmt.Errorf("there are more than %d documents", maxDocuments)
			}
			// The preceding blank lines make the parser's errors name the right line.
			raw, err := yaml.YAMLToJSONStrict(append(bytes.Repeat([]byte("\n"), line-1), piece...))
			if err != nil {
				raw, err = nil, oneLine("read YAML: ", err)
			}
			if string(raw) != "null" {
				documents = append(documents, Document{Line: line, JSON: raw, Err: err})
			}
		}
		line += bytes.Count(piece, []byte("\n"))
	}
	return documents, nil
}

// pieces splits a file before each line that starts or ends a document.
func pieces(data []byte) [][]byte {
	var found [][]byte
	start := 0
	for _, at := range boundary.FindAllIndex(data, -1) {
		if at[0] > start {
			found = append(found, data[start:at[0]])
			start = at[0]
		}
	}
	return append(found, data[start:])
}
