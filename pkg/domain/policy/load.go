// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// maxFile bounds a policy file in bytes.
const maxFile = 1 << 20

// BuiltIn is the name of the policy of a node without any: it offers every tier with default numbers.
const BuiltIn = v1alpha1.BuiltInPolicy

// Format is the format of policy files. The zero value is that of NodePolicies; others come from the packages that implement them.
type Format struct {
	Name string
	// Decode converts the bytes of a file at a path to policies; nil for NodePolicies.
	Decode func(path string, data []byte) (*Decoded, error)
}

// IsNodePolicy reports whether the files contain NodePolicies.
func (f Format) IsNodePolicy() bool { return f.Decode == nil }

// Decoded is the content of a file of another format.
type Decoded struct {
	// Policies by name; one without a name takes that of its file.
	Policies []*v1alpha1.NodePolicy
	// LeftOut are parts of the file that would be policies, but need a feature that Cleave lacks.
	LeftOut []LeftOut
	// Notes describe inexact conversions, each with file, field, value and replacement.
	Notes []string
}

// LeftOut is a policy that could not be converted.
type LeftOut struct {
	Name string
	// Err is v1alpha1.Problems, each with the field.
	Err error
}

// entry is one policy of a file, or its error.
type entry struct {
	// name of the policy; empty if the file gives none. nameless reports that it could not be read.
	name     string
	nameless bool
	// file reports that the file as a whole is wrong.
	file   bool
	policy *v1alpha1.NodePolicy
	err    error
	// leftOut reports that the file is valid, but err prevents its conversion to a policy.
	leftOut bool
}

// reader decodes the policies of a file.
type reader func(f file) (entries []entry, notes []string)

func readerOf(format Format) reader {
	if format.IsNodePolicy() {
		return readPolicies
	}
	return func(f file) (entries []entry, notes []string) {
		decoded, err := format.Decode(f.path, f.data)
		if err != nil {
			return []entry{{file: true, nameless: true, err: err}}, nil
		}
		for _, p := range decoded.Policies {
			entries = append(entries, entry{name: p.Metadata.Name, policy: p})
		}
		for _, left := range decoded.LeftOut {
			entries = append(entries, entry{name: left.Name, err: left.Err, leftOut: true})
		}
		return entries, decoded.Notes
	}
}

func readPolicies(f file) ([]entry, []string) {
	documents, err := v1alpha1.Documents(f.data)
	if err == nil && len(documents) == 0 {
		err = fmt.Errorf("there is no policy: set apiVersion: %s, kind: %s", v1alpha1.APIVersion, v1alpha1.NodePolicyKind)
	}
	if err != nil {
		return []entry{{file: true, nameless: true, err: err}}, nil
	}
	return entriesOf(documents), nil
}

// entriesOf converts documents to policies.
func entriesOf(documents []v1alpha1.Document) []entry {
	var entries []entry
	for _, d := range documents {
		name, known := v1alpha1.PolicyName(d.JSON)
		e := entry{name: name, nameless: !known, err: d.Err}
		if e.err == nil {
			e.policy, e.err = v1alpha1.DecodeNodePolicy(d.JSON)
		}
		if e.err != nil && e.name == "" && len(documents) > 1 {
			e.err = fmt.Errorf("document at line %d: %w", d.Line, e.err)
		}
		entries = append(entries, e)
	}
	return entries
}

// Set are policies by name.
type Set struct {
	policies map[string]*v1alpha1.NodePolicy
	// broken are the errors of unreadable policies, by name.
	broken map[string]error
	// nameless is the error of a policy whose name could not be read; nil if there is none.
	nameless error
	// from are the files in which names first appeared.
	from  map[string]string
	notes []string
}

// Notes lists inexact conversions from files of another format, each with file, field, value and replacement.
func (s *Set) Notes() []string { return s.notes }

// Names lists the policies, sorted.
func (s *Set) Names() []string {
	names := make([]string, 0, len(s.policies))
	for name := range s.policies {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// File is the file of a policy; "" for one that is not in the set.
func (s *Set) File(name string) string { return s.from[name] }

// Select picks the policy that a node's label names, also in the words of the format that the policy was imported from. Without a
// label it is the one named default, or else the built-in one: it offers every tier, so not while a policy whose name cannot be read may be
// the one named default.
func (s *Set) Select(label string) (string, *v1alpha1.NodePolicy, error) {
	name := v1alpha1.PolicyNameOf(label)
	if name == "" {
		name = v1alpha1.DefaultPolicy
	}
	switch p, broken := s.policies[name], s.broken[name]; {
	case broken != nil:
		return "", nil, broken
	case p != nil:
		return name, p, nil
	case name == v1alpha1.DefaultPolicy && s.nameless != nil:
		return "", nil, fmt.Errorf("select the policy %q: it may be one whose name cannot be read: %w", name, s.nameless)
	case label == "":
		return BuiltIn, &v1alpha1.NodePolicy{}, nil
	case len(s.policies) == 0:
		return "", nil, &UnknownError{fmt.Sprintf("there is no policy %q, and no other", label)}
	default:
		return "", nil, &UnknownError{fmt.Sprintf("there is no policy %q: choose one of %s", label, strings.Join(s.Names(), ", "))}
	}
}

// UnknownError is the error for a label that names no policy.
type UnknownError struct{ text string }

func (e *UnknownError) Error() string { return e.text }

// NewSet is a set without policies.
func NewSet() *Set {
	return &Set{policies: map[string]*v1alpha1.NodePolicy{}, broken: map[string]error{}, from: map[string]string{}}
}

// AddDocuments adds documents of a file that may also contain other objects, like Load does. One without a name takes the given
// one.
func (s *Set) AddDocuments(path string, documents []v1alpha1.Document, unnamed string) v1alpha1.Problems {
	return s.add(file{path: path}, func(file) ([]entry, []string) { return entriesOf(documents), nil }, unnamed)
}

// AddFile adds the bytes of a file, like Load does.
func (s *Set) AddFile(path string, data []byte, format Format, unnamed string) v1alpha1.Problems {
	return s.add(file{path: path, data: data}, readerOf(format), unnamed)
}

// Load reads the policies of a file, or of all files of a directory, such as a mounted ConfigMap. A policy without a name takes
// "default" in a file and the file's name without its ending in a directory. Without a path the set is empty, and Select returns
// the built-in policy.
//
// The error is v1alpha1.Problems, each with the file, the policy, and the rule and field. If only some policies are invalid, the
// set has the others: a node is unaffected by policies that it does not use, as far as their names can be read.
func Load(path string, format Format) (*Set, error) {
	s, read := NewSet(), readerOf(format)
	if path == "" {
		return s, nil
	}
	path = filepath.Clean(path)
	info, err := os.Stat(path)
	if err != nil {
		return nil, v1alpha1.Problems{fmt.Errorf("read the node policy: %w", err)}
	}
	var problems v1alpha1.Problems
	if info.IsDir() {
		files, err := readDirectory(path, format)
		if err != nil {
			return nil, v1alpha1.Problems{err}
		}
		for _, f := range files {
			base := filepath.Base(f.path)
			problems = append(problems, s.add(f, read, strings.TrimSuffix(base, filepath.Ext(base)))...)
		}
	} else {
		problems = s.add(readFile(path), read, v1alpha1.DefaultPolicy)
	}
	if len(problems) == 0 {
		return s, nil
	}
	if len(s.policies) == 0 {
		return nil, problems
	}
	return s, problems
}

// file is the content of a file, or the error of reading it.
type file struct {
	path string
	data []byte
	err  error
}

// add adds the policies of a file; those without a name take the given one.
func (s *Set) add(f file, read reader, unnamed string) (problems v1alpha1.Problems) {
	if f.err != nil {
		s.broken[unnamed], s.nameless = f.err, f.err
		return v1alpha1.Problems{f.err}
	}
	entries, notes := read(f)
	s.notes = append(s.notes, notes...)
	for _, e := range entries {
		name := e.name
		if name == "" {
			name = unnamed
		}
		err := e.err
		if err == nil {
			err = v1alpha1.CheckPolicyName(name)
		}
		if err == nil && (s.policies[name] != nil || s.broken[name] != nil) {
			err = fmt.Errorf("metadata.name: %s also has a policy of this name: names must be unique", s.from[name])
		}
		if s.from[name] == "" {
			s.from[name] = f.path
		}
		if err == nil {
			named := *e.policy
			named.Metadata.Name = name
			s.policies[name] = &named
			continue
		}
		where := fmt.Sprintf("%s: policy %q", f.path, name)
		if e.file {
			where = f.path
		}
		err = fmt.Errorf("%s: %w", where, err)
		delete(s.policies, name)
		s.broken[name] = err
		if e.nameless {
			s.nameless = err
		}
		if !e.leftOut {
			problems = append(problems, v1alpha1.ProblemsOf(err)...)
		}
	}
	return problems
}

// readFile reads a file up to one byte beyond the limit.
func readFile(path string) file {
	f, err := os.Open(path)
	if err != nil {
		return file{path: path, err: fmt.Errorf("open the node policy: %w", err)}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return file{path: path, err: fmt.Errorf("read the node policy %s: %w", path, err)}
	}
	return file{path: path, data: data}
}

// Endings are the file name extensions of policies in a directory.
func Endings() []string { return []string{".yaml", ".yml", ".json"} }

// readDirectory reads a directory's files by name. The kubelet changes a mounted ConfigMap by pointing the link ..data to another
// directory: after such a change, all files are reread.
func readDirectory(dir string, format Format) ([]file, error) {
	const attempts = 5
	for range attempts {
		before, _ := os.Readlink(filepath.Join(dir, "..data"))
		files, err := readFiles(dir, format)
		if after, _ := os.Readlink(filepath.Join(dir, "..data")); before == after {
			return files, err
		}
	}
	return nil, fmt.Errorf("read the node policies of %s: the directory keeps changing", dir)
}

func readFiles(dir string, format Format) ([]file, error) {
	paths, others, err := FilesIn(dir)
	if err != nil {
		return nil, fmt.Errorf("read the node policies: %w", err)
	}
	if !format.IsNodePolicy() { // whose files have other extensions, or none
		paths, others = append(paths, others...), nil
		slices.Sort(paths)
	}
	if len(paths) == 0 && len(others) == 0 {
		return nil, fmt.Errorf("read the node policies of %s: there is no file", dir)
	}
	if len(paths) == 0 {
		for i := range others {
			others[i] = filepath.Base(others[i])
		}
		return nil, fmt.Errorf("read the node policies of %s: no file ends in %s, but there are %s", dir,
			strings.Join(Endings(), ", "), strings.Join(others, ", "))
	}
	var files []file
	for _, path := range paths {
		files = append(files, readFile(path))
	}
	return files, nil
}

// FilesIn lists the files of a directory, sorted, those with one of the Endings apart from the others. Files whose name
// starts with a dot and directories are left out, as a mounted ConfigMap has them alongside its keys.
func FilesIn(dir string) (paths, others []string, err error) {
	found, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range found {
		path := filepath.Join(dir, d.Name())
		if info, err := os.Stat(path); strings.HasPrefix(d.Name(), ".") || err == nil && !info.Mode().IsRegular() {
			continue
		}
		if slices.Contains(Endings(), filepath.Ext(path)) {
			paths = append(paths, path)
		} else {
			others = append(others, path)
		}
	}
	return paths, others, nil
}
