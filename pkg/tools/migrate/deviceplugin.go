// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// pluginFile is the configuration file of the device plugin.
type pluginFile struct {
	Version   *string         `json:"version"`
	Flags     pluginFlags     `json:"flags"`
	Resources pluginResources `json:"resources"`
	Sharing   pluginSharing   `json:"sharing"`
	Imex      pluginImex      `json:"imex"`
}

// pluginResources name resources by the names of products and profiles.
type pluginResources struct {
	GPUs []namedPattern `json:"gpus"`
	MIG  []namedPattern `json:"mig"`
}

type namedPattern struct {
	Pattern pattern `json:"pattern"`
	Name    string  `json:"name"`
}

type pluginSharing struct {
	TimeSlicing *replicated `json:"timeSlicing"`
	MPS         *replicated `json:"mps"`
}

type replicated struct {
	RenameByDefault            bool                 `json:"renameByDefault"`
	FailRequestsGreaterThanOne *bool                `json:"failRequestsGreaterThanOne"`
	Resources                  []replicatedResource `json:"resources"`
}

type replicatedResource struct {
	Name   string `json:"name"`
	Rename string `json:"rename"`
	// Devices is "all", a number, or a list of indexes and UUIDs; refs is what it says.
	Devices  any    `json:"devices"`
	Replicas *int64 `json:"replicas"`
	refs     deviceRefs
}

type pluginImex struct {
	ChannelIDs []int32 `json:"channelIDs"`
	Required   bool    `json:"required"`
}

// deviceRefs are the devices of a resource that are shared.
type deviceRefs struct {
	// all reports that there is no choice.
	all bool
	// count is the number of devices, zero where they are named.
	count   int64
	indexes []int32
	uuids   []string
	// partitions are indexes and UUIDs of partitions.
	partitions []string
}

// MIG strategies (api/config/v1/consts.go).
const (
	strategyNone   = "none"
	strategySingle = "single"
	strategyMixed  = "mixed"
)

// shared reports whether there are several replicas. The plugin takes no other entry (api/config/v1/replicas.go, minReplicas),
// and one replica is what people write for no sharing.
func (r *replicatedResource) shared() bool { return *r.Replicas > 1 }

// maxCount bounds the number of devices that are shared, and maxListed those that are named: no node has more. maxEntries
// bounds lists of resources, of which each is a rule.
const (
	maxCount   = 64
	maxListed  = 256
	maxEntries = v1alpha1.MaxRules
)

// check completes names, reads the devices, and refuses what the plugin refuses, too.
func (f *pluginFile) check() error {
	if err := checkVersion(f.Version, false); err != nil {
		return err
	}
	errs := f.Flags.check(field.NewPath("flags"))
	at := field.NewPath("resources")
	for _, list := range []struct {
		name     string
		patterns []namedPattern
	}{{"gpus", f.Resources.GPUs}, {"mig", f.Resources.MIG}} {
		if n := len(list.patterns); n > maxEntries {
			errs = append(errs, field.TooMany(at.Child(list.name), n, maxEntries))
			continue
		}
		for i := range list.patterns {
			errs = append(errs, list.patterns[i].check(at.Child(list.name).Index(i))...)
			if slices.ContainsFunc(list.patterns[:i], func(p namedPattern) bool { return p.Pattern == list.patterns[i].Pattern }) {
				errs = append(errs, field.Duplicate(at.Child(list.name).Index(i).Child("pattern"), string(list.patterns[i].Pattern)))
			}
		}
	}
	at = field.NewPath("sharing")
	if f.Sharing.TimeSlicing != nil && f.Sharing.MPS != nil {
		errs = append(errs, field.Forbidden(at, "timeSlicing and mps exclude each other in the device plugin: remove one"))
	}
	errs = append(errs, f.Sharing.TimeSlicing.check(at.Child("timeSlicing"))...)
	errs = append(errs, f.Sharing.MPS.check(at.Child("mps"))...)
	return problemsOf(errs)
}

func (p *namedPattern) check(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case p.Pattern == "":
		errs = append(errs, field.Required(path.Child("pattern"), "want part of a product's or profile's name, or *"))
	case len(p.Pattern) > maxPattern:
		errs = append(errs, field.TooLong(path.Child("pattern"), p.Pattern, maxPattern))
	}
	return append(errs, checkResource(path.Child("name"), &p.Name, true)...)
}

// maxResource is the length of a resource's name (api/config/v1/consts.go).
const maxResource = 63

// checkResource completes the name of a resource as the plugin does, and checks it.
func checkResource(path *field.Path, name *string, needed bool) field.ErrorList {
	if *name == "" {
		if needed {
			return field.ErrorList{field.Required(path, "want a resource such as nvidia.com/gpu")}
		}
		return nil
	}
	given := *name
	if !strings.HasPrefix(given, resourcePrefix) {
		*name = resourcePrefix + given
	}
	if len(*name) > maxResource || len(validation.IsDNS1123Subdomain(strings.TrimPrefix(*name, resourcePrefix))) > 0 {
		return field.ErrorList{field.Invalid(path, given,
			fmt.Sprintf("must be a resource such as nvidia.com/gpu: lower-case letters, digits, '-' and '.', %d at most with nvidia.com/ in front",
				maxResource))}
	}
	return nil
}

func (r *replicated) check(path *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	at := path.Child("resources")
	if len(r.Resources) == 0 {
		return field.ErrorList{field.Required(at, "name one, such as {name: nvidia.com/gpu, replicas: 4}")}
	}
	if n := len(r.Resources); n > maxEntries {
		return field.ErrorList{field.TooMany(at, n, maxEntries)}
	}
	var errs field.ErrorList
	for i := range r.Resources {
		e, at := &r.Resources[i], at.Index(i)
		errs = append(errs, checkResource(at.Child("name"), &e.Name, true)...)
		errs = append(errs, checkResource(at.Child("rename"), &e.Rename, false)...)
		switch {
		case e.Replicas == nil:
			errs = append(errs, field.Required(at.Child("replicas"), "say how many shares"))
		case *e.Replicas < 1:
			errs = append(errs, field.Invalid(at.Child("replicas"), *e.Replicas, "must be 1 or more"))
		}
		var wrong field.ErrorList
		e.refs, wrong = readRefs(e.Devices, at.Child("devices"))
		errs = append(errs, wrong...)
		if len(wrong) > 0 {
			continue
		}
		for j := range r.Resources[:i] {
			if before := &r.Resources[j]; before.Name == e.Name {
				if what := before.refs.common(e.refs); what != "" {
					errs = append(errs, field.Invalid(at, e.Name, fmt.Sprintf("%s shared by resources[%d] already", what, j)))
				}
			}
		}
	}
	return errs
}

// References to devices (api/config/v1/replicas.go, ReplicatedDeviceRef).
var (
	gpuIndexRef = regexp.MustCompile(`^[0-9]{1,9}$`)
	migIndexRef = regexp.MustCompile(`^[0-9]{1,9}:[0-9]{1,9}$`)
	uuidForm    = `[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`
	gpuUUIDRef  = regexp.MustCompile(`^GPU-` + uuidForm + `$`)
	migUUIDRef  = regexp.MustCompile(`^MIG-(` + uuidForm + `|GPU-` + uuidForm + `/[0-9]+/[0-9]+)$`)
)

// readRefs reads which devices are shared; nothing stands for all.
func readRefs(value any, path *field.Path) (deviceRefs, field.ErrorList) {
	const want = `must be "all", a number of devices, or a list of indexes and UUIDs`
	switch value := value.(type) {
	case nil:
		return deviceRefs{all: true}, nil
	case string:
		if value == "all" {
			return deviceRefs{all: true}, nil
		}
		return deviceRefs{}, field.ErrorList{field.Invalid(path, value, want)}
	case int64:
		if value >= 1 && value <= maxCount {
			return deviceRefs{count: value}, nil
		}
		return deviceRefs{}, field.ErrorList{field.Invalid(path, value, fmt.Sprintf("must be 1 to %d", maxCount))}
	case []any:
		return readRefList(value, path)
	default:
		return deviceRefs{}, field.ErrorList{field.Invalid(path, field.OmitValueType{}, want)}
	}
}

func readRefList(list []any, path *field.Path) (refs deviceRefs, errs field.ErrorList) {
	if len(list) == 0 {
		return refs, field.ErrorList{field.Required(path, "name a device, or leave devices out for all")}
	}
	if len(list) > maxListed {
		return refs, field.ErrorList{field.TooMany(path, len(list), maxListed)}
	}
	seen := map[string]bool{}
	for i, value := range list {
		at := path.Index(i)
		text := fmt.Sprint(value)
		if _, isText := value.(string); !isText {
			if n, isNumber := value.(int64); !isNumber || n < 0 {
				text = ""
			}
		}
		switch {
		case gpuIndexRef.MatchString(text):
			n, err := strconv.ParseInt(text, 10, 32)
			if err != nil {
				errs = append(errs, field.Invalid(at, text, "is out of range"))
				continue
			}
			text = strconv.Itoa(int(n))
			refs.indexes = append(refs.indexes, int32(n))
		case gpuUUIDRef.MatchString(text):
			refs.uuids = append(refs.uuids, text)
		case migIndexRef.MatchString(text), migUUIDRef.MatchString(text):
			refs.partitions = append(refs.partitions, text)
		default:
			errs = append(errs, field.Invalid(at, value,
				"must be the index of a GPU such as 0, of a partition such as 0:1, or a UUID as nvidia-smi -L has it"))
			continue
		}
		if seen[text] {
			errs = append(errs, field.Duplicate(at, value))
		}
		seen[text] = true
	}
	return refs, errs
}

// gpus are the indexes of the GPUs that a number of devices means, or those that are named.
func (r deviceRefs) gpus() []int32 {
	if r.count == 0 {
		return r.indexes
	}
	var indexes []int32
	for i := range r.count {
		indexes = append(indexes, int32(i))
	}
	return indexes
}

// common says in words what both share; empty where nothing is.
func (r deviceRefs) common(other deviceRefs) string {
	if r.all || other.all {
		return "some of its devices are"
	}
	for _, n := range other.gpus() {
		if slices.Contains(r.gpus(), n) {
			return fmt.Sprintf("device %d is", n)
		}
	}
	for _, name := range slices.Concat(other.uuids, other.partitions) {
		if slices.Contains(r.uuids, name) || slices.Contains(r.partitions, name) {
			return fmt.Sprintf("device %s is", name)
		}
	}
	return ""
}
