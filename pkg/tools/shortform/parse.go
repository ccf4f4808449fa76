// SPDX-License-Identifier: Apache-2.0

package shortform

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/pkg/tools/admission"
	"github.com/cleave-dra/cleave/pkg/tools/suggest"
)

// Devices of a GPU that are no partition.
const (
	whole  = "gpu"
	shared = "shared" // time slices
	mps    = "mps"
)

// Condition is what devices of a claim have in common.
type Condition string

// The conditions.
const (
	OneNUMANode     Condition = "one numa node"
	OnePCIeRoot     Condition = "one pcie root"
	OneNVLinkDomain Condition = "one nvlink domain"
)

var conditions = []Condition{OneNUMANode, OnePCIeRoot, OneNVLinkDomain}

// maxCPUs bounds the CPUs of a claim: Linux has no more (NR_CPUS).
const maxCPUs = 8192

// Form is a short form that was read.
type Form struct {
	// Devices of GPUs, and of which kind: "gpu", "shared", "mps", or a MIG profile.
	Devices int64
	Kind    string
	// Memory is the least of each device, and of a share the amount; nil for any.
	Memory *resource.Quantity
	CPUs   int64
	NICs   int64
	// Conditions in the order of the constants.
	Conditions []Condition
}

// IsPartition reports whether the form asks for partitions.
func (f *Form) IsPartition() bool { return !slices.Contains([]string{whole, shared, mps}, f.Kind) }

// Has reports whether the form has a condition.
func (f *Form) Has(c Condition) bool { return slices.Contains(f.Conditions, c) }

// Expected says what a short form consists of.
const Expected = `expected are parts between commas: "4 gpus", "1 shared", "1 mps" or a number and a profile such as "2 1g.10gb"; ` +
	`"memory >= 40Gi"; "48 cpus"; "4 nics"; "one numa node", "one pcie root" or "one nvlink domain"`

// Parse reads a short form. Profiles are the MIG profiles that there are.
func Parse(text string, profiles []string) (*Form, error) {
	p := &parser{profiles: profiles, form: &Form{}}
	for part := range strings.SplitSeq(text, ",") {
		words := strings.Fields(spaced.Replace(strings.ToLower(part)))
		if len(words) == 0 {
			return nil, fmt.Errorf("a part is empty: %s", Expected)
		}
		if err := p.part(words); err != nil {
			return nil, err
		}
	}
	if err := p.form.check(); err != nil {
		return nil, err
	}
	return p.form, nil
}

// spaced makes a word of its own of what may stand without spaces.
var spaced = strings.NewReplacer("≥", " >= ", ">=", " >= ")

type parser struct {
	profiles []string
	form     *Form
}

// part reads what is between two commas.
func (p *parser) part(words []string) error {
	if words[0] == "memory" {
		return p.memory(words)
	}
	said := strings.Join(words, " ")
	count, counted, err := number(words[0])
	if err != nil {
		return fmt.Errorf("%q: %w", said, err)
	}
	what := said
	if counted {
		what = strings.Join(words[1:], " ")
	}
	if c := Condition("one " + what); slices.Contains(conditions, c) {
		return p.condition(c, count, said)
	}
	switch one := strings.TrimSuffix(what, "s"); {
	case one == "cpu":
		return set(&p.form.CPUs, count, said, "cpus")
	case one == "nic":
		return set(&p.form.NICs, count, said, "nics")
	case one == whole:
		return p.devices(whole, count, said)
	case what == shared, what == mps:
		return p.devices(what, count, said)
	case slices.Contains(p.profiles, what):
		return p.devices(what, count, said)
	case what == "":
		return fmt.Errorf("%q has a number alone: say of what, such as %q", said, said+" gpus")
	}
	return fmt.Errorf("%q is not known%s%s%s", said, p.meant(words, counted, what), "; ", Expected)
}

// meant asks what a part was meant for.
func (p *parser) meant(words []string, counted bool, what string) string {
	names := []string{"gpus", "gpu", "cpus", "cpu", "nics", "nic", shared, mps, "memory"}
	for _, c := range conditions {
		names = append(names, strings.TrimPrefix(string(c), "one "))
	}
	names = append(names, p.profiles...)
	digits := strings.IndexFunc(what, func(r rune) bool { return r < '0' || r > '9' })
	if !counted && digits > 0 && slices.Contains(names, what[digits:]) { // "4gpus"
		return suggest.Question(strconv.Quote(what[:digits] + " " + what[digits:]))
	}
	name := suggest.Nearest(what, names)
	if name == "" {
		return ""
	}
	switch {
	case slices.Contains(conditions, Condition("one "+name)):
		name = "one " + name
	case name == "memory":
		name = "memory >= 40Gi"
	case counted:
		name = words[0] + " " + name
	}
	return suggest.Question(strconv.Quote(name))
}

// number reads a count; a part without one is for one.
func number(word string) (count int64, counted bool, err error) {
	if word == "one" {
		return 1, true, nil
	}
	if strings.TrimLeft(word, "+-0123456789") != "" || strings.TrimLeft(word, "+-") == "" {
		return 1, false, nil
	}
	count, err = strconv.ParseInt(word, 10, 32)
	if err != nil || count < 1 {
		return 0, true, fmt.Errorf("%s is not a number from 1 on", word)
	}
	return count, true, nil
}

// set sets a number that a form can have once.
func set(to *int64, count int64, said, what string) error {
	if *to != 0 {
		return fmt.Errorf("%q: %s are requested twice: add the numbers up", said, what)
	}
	*to = count
	return nil
}

func (p *parser) devices(kind string, count int64, said string) error {
	if p.form.Kind != "" && p.form.Kind != kind {
		return fmt.Errorf("%q: the claim has %s already: write a claim for each kind of device", said, p.form.Kind)
	}
	p.form.Kind = kind
	return set(&p.form.Devices, count, said, "GPUs")
}

func (p *parser) condition(c Condition, count int64, said string) error {
	if count != 1 {
		return fmt.Errorf("%q: a condition is about one: write %q", said, c)
	}
	if p.form.Has(c) {
		return fmt.Errorf("%q is there twice", said)
	}
	p.form.Conditions = append(p.form.Conditions, c)
	slices.SortFunc(p.form.Conditions, func(a, b Condition) int { return slices.Index(conditions, a) - slices.Index(conditions, b) })
	return nil
}

// memory reads "memory >= 40Gi".
func (p *parser) memory(words []string) error {
	said := strings.Join(words, " ")
	amount, ok := strings.CutPrefix(strings.Join(words[1:], ""), ">=")
	if !ok || amount == "" {
		return fmt.Errorf("%q: expected is an amount such as \"memory >= 40Gi\"", said)
	}
	if p.form.Memory != nil {
		return fmt.Errorf("%q: memory is there twice", said)
	}
	q, err := resource.ParseQuantity(withUnit(amount))
	if err != nil || q.Sign() <= 0 || strings.Contains(amount, "e") { // to compare 1e999999999 takes for ever
		return fmt.Errorf("%q: %q is not an amount: expected is one such as 40Gi", said, amount)
	}
	const least = 1 << 20 // who writes 40 means GiB
	if q.CmpInt64(least) < 0 {
		return fmt.Errorf("%q: %s is less than 1Mi: did you mean %q?", said, amount, "memory >= "+amount+"Gi")
	}
	if q.Cmp(admission.MostMemory) > 0 {
		return fmt.Errorf("%q: no GPU has more memory than %s", said, &admission.MostMemory)
	}
	p.form.Memory = &q
	return nil
}

var units = map[string]string{"ki": "Ki", "mi": "Mi", "gi": "Gi", "ti": "Ti", "k": "k", "m": "M", "g": "G", "t": "T"}

// withUnit spells the unit of an amount as Kubernetes does: "40gi", which was lowered, and "40gib" are 40Gi, and "40gb" is 40G.
func withUnit(amount string) string {
	digits := strings.TrimRight(amount, "abcdefghijklmnopqrstuvwxyz")
	unit, known := units[strings.TrimSuffix(amount[len(digits):], "b")]
	if !known {
		return amount
	}
	return digits + unit
}

// check refuses what no claim can be.
func (f *Form) check() error {
	most := int64(resourceapi.AllocationResultsMaxSize)
	results := f.Devices + f.NICs + min(f.CPUs, 1)
	switch {
	case f.Kind == "":
		return errors.New("it asks for no GPU: add \"1 gpu\", \"1 shared\", \"1 mps\" or a profile such as \"1 1g.10gb\"")
	case f.CPUs > maxCPUs:
		return fmt.Errorf("%d cpus are more than a node has: at most %d", f.CPUs, maxCPUs)
	case results > most:
		return fmt.Errorf("it asks for %d devices, of which a claim can have %d (CPUs count as one): write several claims", results, most)
	case f.Kind == mps && f.Devices > 1:
		return errors.New("a container can use one MPS server only: ask for \"1 mps\" with more memory")
	case f.Has(OneNVLinkDomain) && f.IsPartition():
		return fmt.Errorf("%s: partitions have no NVLink: remove %q", f.Kind, OneNVLinkDomain)
	}
	return nil
}
