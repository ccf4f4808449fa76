// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/admission"
	"github.com/cleave-dra/cleave/pkg/tools/suggest"
)

// Options say what files are checked against.
type Options struct {
	// Rules for claims and classes.
	Rules admission.Rules
	// Node is what policies and claims are checked against; nil for none.
	Node *Node
	// Format of files that are not Kubernetes objects; the zero value for NodePolicies.
	Format policy.Format
	// PolicyName picks the policy that the node has, as its label would; empty for the default.
	PolicyName string
	// Stdin is what the path "-" stands for.
	Stdin io.Reader
}

// File is what was found in one file.
type File struct {
	Path string
	// Checked are the objects that were looked at, such as "NodePolicy training".
	Checked []string
	// PassedOver are those of which nothing is known.
	PassedOver []string
	// Problems each name file, object and field.
	Problems []string
	// Notes are What could not be checked.
	Notes []string
}

// Files checks files, and all *.yaml, *.yml and *.json files of directories. The error is about a path that cannot be read.
func Files(ctx context.Context, paths []string, o Options) ([]*File, error) {
	o.PolicyName = v1alpha1.PolicyNameOf(o.PolicyName) // as nodes select it
	v := &validation{Options: o, at: map[string]*File{}, classes: map[string]*resourceapi.DeviceClass{}}
	for _, path := range paths {
		found, directory, err := expand(path)
		if err != nil {
			return nil, err
		}
		set := policy.NewSet() // as the plugin has it, which is given one path
		for _, p := range found {
			data, err := v.read(p)
			if err != nil {
				return nil, err
			}
			unnamed := v1alpha1.DefaultPolicy
			if directory {
				unnamed = strings.TrimSuffix(filepath.Base(p), filepath.Ext(p))
			}
			v.file(p, data, set, unnamed)
		}
		v.sets = append(v.sets, set)
	}
	for _, o := range v.objects {
		v.checkObject(o)
	}
	if err := v.addClasses(); err != nil {
		return nil, err
	}
	names := newNames()
	for _, o := range v.objects {
		v.checkClasses(o)
		v.checkNames(o, names)
		v.warnings(o)
	}
	for _, p := range v.pods {
		podChecks{v}.checkPod(p)
	}
	if v.Node != nil {
		if err := v.checkOnNode(ctx); err != nil {
			return nil, err
		}
	}
	return v.files, nil
}

// validation is one run.
type validation struct {
	Options
	files []*File
	// at are the files by the words that errors have for them.
	at      map[string]*File
	sets    []*policy.Set
	objects []*object
	pods    []*pod
	// classes that claims can name, as far as their selectors can be evaluated.
	classes map[string]*resourceapi.DeviceClass
}

func expand(path string) (files []string, directory bool, err error) {
	if path == "-" {
		return []string{path}, false, nil
	}
	path = filepath.Clean(path)
	info, err := os.Stat(path)
	if err != nil {
		if wrong := (*os.PathError)(nil); errors.As(err, &wrong) {
			err = wrong.Err
		}
		return nil, false, fmt.Errorf("read %s: %w%s", path, err, similar(path))
	}
	if !info.IsDir() {
		return []string{path}, false, nil
	}
	files, _, err = policy.FilesIn(path)
	if err != nil {
		return nil, false, fmt.Errorf("read %s: %w", path, err)
	}
	if len(files) == 0 {
		return nil, true, fmt.Errorf("read %s: no file of the directory ends in %s", path, strings.Join(policy.Endings(), ", "))
	}
	return files, true, nil
}

// similar names files that a path may have been meant for.
func similar(path string) string {
	found, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return ""
	}
	var names []string
	for _, d := range found {
		if suggest.Distance(d.Name(), filepath.Base(path)) <= 2 {
			names = append(names, filepath.Join(filepath.Dir(path), d.Name()))
		}
	}
	return suggest.Question(names...)
}

func (v *validation) read(path string) ([]byte, error) {
	in := v.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		defer f.Close()
		in = f
	}
	const most = 1 << 20 // what Documents takes
	data, err := io.ReadAll(io.LimitReader(in, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}

// file sorts what is in a file: policies go to a set, claims and classes are kept for later, as they refer to one another.
func (v *validation) file(path string, data []byte, set *policy.Set, unnamed string) {
	f := &File{Path: path}
	v.files = append(v.files, f)
	documents, err := v1alpha1.Documents(data)
	if err != nil {
		f.problem(err)
		return
	}
	if !v.Format.IsNodePolicy() && !slices.ContainsFunc(documents, isObject) {
		v.importedFile(f, path, data, set, unnamed)
		return
	}
	v.documents(f, path, documents, set, unnamed)
	if len(f.Checked)+len(f.PassedOver)+len(f.Problems) == 0 {
		f.Problems = append(f.Problems, path+": there is nothing in it")
	}
}

// isObject reports whether a document is a Kubernetes object, or meant as one.
func isObject(d v1alpha1.Document) bool {
	h := &header{}
	return d.Err == nil && json.Unmarshal(d.JSON, h) == nil && h.APIVersion != ""
}

// importedFile takes up a file of a format that is not ours.
func (v *validation) importedFile(f *File, path string, data []byte, set *policy.Set, unnamed string) {
	v.at[path] = f
	notes := len(set.Notes())
	v.added(f, set, func() v1alpha1.Problems { return set.AddFile(path, data, v.Format, unnamed) })
	f.Notes = append(f.Notes, set.Notes()[notes:]...)
}

// added notes which policies of a file come to a set, and what is wrong with the others.
func (v *validation) added(f *File, set *policy.Set, add func() v1alpha1.Problems) {
	before := set.Names()
	for _, problem := range add() {
		f.Problems = append(f.Problems, problem.Error())
	}
	for _, name := range set.Names() {
		if !slices.Contains(before, name) {
			f.Checked = append(f.Checked, v1alpha1.NodePolicyKind+" "+name)
		}
	}
}

func (f *File) problem(err error) {
	for _, problem := range v1alpha1.ProblemsOf(fmt.Errorf("%s: %w", f.Path, err)) {
		f.Problems = append(f.Problems, problem.Error())
	}
}

// header is what every object has.
type header struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
	Data  map[string]string `json:"data"`
}

// name of an object with its kind.
func (h *header) name() string {
	name := h.Metadata.Name
	if h.Metadata.Namespace != "" {
		name = h.Metadata.Namespace + "/" + name
	}
	if name == "" {
		return h.Kind
	}
	return h.Kind + " " + name
}

// isList reports whether an object is a list of others, as kubectl writes it.
func (h *header) isList() bool { return h.APIVersion == "v1" && h.Kind == "List" }

// ours reports whether an object is, or should be, of our API group.
func (h *header) ours() bool {
	return h.APIVersion == "" || h.Kind == "" || h.APIVersion == v1alpha1.Group || strings.HasPrefix(h.APIVersion, v1alpha1.Group+"/")
}

// documents sorts documents of a file, where words them.
func (v *validation) documents(f *File, where string, documents []v1alpha1.Document, set *policy.Set, unnamed string) {
	var policies []v1alpha1.Document
	others := false
	for _, d := range documents {
		h := &header{}
		if d.Err == nil {
			_ = json.Unmarshal(d.JSON, h) // what is no object has no kind, and is refused as a policy
		}
		switch {
		case d.Err == nil && h.APIVersion == v1alpha1.APIVersion && h.Kind == v1alpha1.ShareConfigKind:
			f.Checked = append(f.Checked, h.Kind)
			if _, err := v1alpha1.DecodeParameters(d.JSON); err != nil {
				f.problem(fmt.Errorf("%s: %w", h.Kind, err))
			}
		case d.Err != nil || h.ours():
			policies = append(policies, d)
		default:
			others = true
			v.otherKind(f, where, d, h)
		}
	}
	if others { // what cannot be read need not have been a policy
		policies = slices.DeleteFunc(policies, func(d v1alpha1.Document) bool {
			if d.Err != nil {
				f.problem(fmt.Errorf("document at line %d: %w", d.Line, d.Err))
			}
			return d.Err != nil
		})
	}
	if len(policies) == 0 {
		return
	}
	v.at[where] = f
	v.added(f, set, func() v1alpha1.Problems { return set.AddDocuments(where, policies, unnamed) })
}

// otherKind sorts one object of another API group.
func (v *validation) otherKind(f *File, where string, d v1alpha1.Document, h *header) {
	switch {
	case h.isList():
		var items []v1alpha1.Document
		for _, raw := range h.Items {
			of := &header{}
			if json.Unmarshal(raw, of) == nil && of.isList() {
				f.problem(fmt.Errorf("%s: a List has another one", h.name()))
				continue
			}
			items = append(items, v1alpha1.Document{Line: d.Line, JSON: raw})
		}
		v.documents(f, where, items, policy.NewSet(), v1alpha1.DefaultPolicy)
	case h.APIVersion == "v1" && h.Kind == "ConfigMap" && v.configMap(f, where, h):
	case isClaimOrClass(h):
		v.decode(f, d, h)
	case isNearly(h) != "":
		f.problem(fmt.Errorf("%s: %s", h.name(), isNearly(h)))
	case v.podsOf(f, d, h):
	default:
		f.PassedOver = append(f.PassedOver, h.name())
	}
}

// configMap takes up a ConfigMap that holds policies as the plugin does when it is mounted; it reports whether it is one.
func (v *validation) configMap(f *File, where string, h *header) bool {
	set, is := policy.NewSet(), false
	keys := make([]string, 0, len(h.Data))
	for key := range h.Data {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		documents, err := v1alpha1.Documents([]byte(h.Data[key]))
		if err != nil || !slices.Contains(policy.Endings(), filepath.Ext(key)) || !slices.ContainsFunc(documents, isPolicy) {
			continue
		}
		is = true
		at := fmt.Sprintf("%s: %s, %s", where, h.name(), key)
		v.documents(f, at, documents, set, strings.TrimSuffix(key, filepath.Ext(key)))
	}
	v.sets = append(v.sets, set)
	return is
}

func isPolicy(d v1alpha1.Document) bool {
	var meta metav1.TypeMeta
	return d.Err == nil && json.Unmarshal(d.JSON, &meta) == nil && meta.Kind == v1alpha1.NodePolicyKind
}
