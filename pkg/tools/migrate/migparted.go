// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// partedFile is the configuration file of mig-parted.
type partedFile struct {
	Version    *string                  `json:"version"`
	MIGConfigs map[string][]partedEntry `json:"mig-configs"`
}

// partedEntry says what is made of some of a node's GPUs.
type partedEntry struct {
	// DeviceFilter is a PCI device ID or a list of such; Devices is "all" or a list of indexes.
	DeviceFilter any              `json:"device-filter"`
	Devices      any              `json:"devices"`
	MIGEnabled   *bool            `json:"mig-enabled"`
	MIGDevices   map[string]int64 `json:"mig-devices"`

	match *v1alpha1.Match
	// none reports that the entry is of no GPU.
	none bool
}

// checkParted refuses what mig-parted refuses, too, and reads the matches.
func (i *Import) checkParted(f *partedFile) error {
	if err := checkVersion(f.Version, true); err != nil {
		return err
	}
	top := field.NewPath("mig-configs")
	if len(f.MIGConfigs) == 0 {
		return problemsOf(field.ErrorList{field.Required(top, "want at least one")})
	}
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(f.MIGConfigs)) {
		path, entries := top.Key(name), f.MIGConfigs[name]
		if len(entries) == 0 {
			errs = append(errs, field.Required(path, "want at least one entry"))
		}
		for j := range entries {
			errs = append(errs, entries[j].check(path.Index(j))...)
		}
	}
	return problemsOf(errs)
}

func (e *partedEntry) check(path *field.Path) field.ErrorList {
	e.match = &v1alpha1.Match{}
	errs := e.readFilter(path.Child("device-filter"))
	errs = append(errs, e.readDevices(path.Child("devices"))...)
	at := path.Child("mig-devices")
	if n := len(e.MIGDevices); n > maxEntries {
		return append(errs, field.TooMany(at, n, maxEntries))
	}
	total := int64(0)
	for _, profile := range slices.Sorted(maps.Keys(e.MIGDevices)) {
		n := e.MIGDevices[profile]
		if !partedProfile.MatchString(profile) {
			errs = append(errs, field.Invalid(at.Key(profile), profile, "must be the name of a MIG profile, such as 1g.10gb"))
		}
		const most = 1 << 10
		if n < 0 || n > most {
			errs = append(errs, field.Invalid(at.Key(profile), n, "must be a number of partitions"))
			n = 0
		}
		total += n
	}
	switch {
	case e.MIGEnabled == nil:
		errs = append(errs, field.Required(path.Child("mig-enabled"), "want true or false"))
	case *e.MIGEnabled && e.MIGDevices == nil:
		errs = append(errs, field.Required(at, "mig-enabled is true: say which partitions, {} for none"))
	case *e.MIGEnabled && len(e.MIGDevices) > 0 && total == 0 && len(errs) == 0:
		errs = append(errs, field.Invalid(at, "0", "at least one profile must have a number above 0"))
	case !*e.MIGEnabled && len(e.MIGDevices) > 0:
		errs = append(errs, field.Forbidden(at, "mig-enabled is false"))
	}
	return errs
}

// partedProfile is how mig-parted names profiles (NVIDIA/go-nvlib, pkg/nvlib/device/mig_profile.go).
var partedProfile = regexp.MustCompile(`^([0-9]+c\.)?[0-9]+g\.[0-9]+gb([+-][a-zA-Z.,]+)*$`)

// readFilter reads PCI device IDs (mig-parted, pkg/types/device.go, NewDeviceIDFromString).
func (e *partedEntry) readFilter(path *field.Path) field.ErrorList {
	var list []any
	switch filter := e.DeviceFilter.(type) {
	case nil:
		return nil
	case string:
		if filter == "" {
			return nil
		}
		list = []any{filter}
	case []any:
		list = filter
	default:
		list = []any{filter}
	}
	if len(list) > maxListed {
		return field.ErrorList{field.TooMany(path, len(list), maxListed)}
	}
	var errs field.ErrorList
	for j, value := range list {
		at := path.Index(j)
		text, ok := value.(string)
		name, valid := deviceID(text)
		switch {
		case !ok:
			errs = append(errs, field.Invalid(at, value, `must be text such as "0x233010DE": put it in quotes`))
			continue
		case !valid:
			errs = append(errs, field.Invalid(at, text, "must be a PCI device ID and the vendor's, such as 0x233010DE"))
			continue
		}
		if slices.Contains(e.match.DeviceIDs, name) {
			errs = append(errs, field.Duplicate(at, text))
			continue
		}
		e.match.DeviceIDs = append(e.match.DeviceIDs, name)
	}
	return errs
}

// deviceID is the form that policies have of a filter: a PCI device ID and, after a colon, that of the board (subsystem).
func deviceID(filter string) (id string, valid bool) {
	var parts []string
	for part := range strings.SplitSeq(filter, ":") {
		n, err := strconv.ParseUint(part, 0, 32)
		if err != nil || n < 1<<16 || len(parts) > 1 {
			return "", false
		}
		parts = append(parts, fmt.Sprintf("0x%08X", n))
	}
	return strings.Join(parts, ":"), true
}

func (e *partedEntry) readDevices(path *field.Path) field.ErrorList {
	switch devices := e.Devices.(type) {
	case nil:
		return field.ErrorList{field.Required(path, "want all, or a list of indexes such as [0, 1]")}
	case string:
		if devices != "all" {
			return field.ErrorList{field.Invalid(path, devices, "must be all, or a list of indexes such as [0, 1]")}
		}
		return nil
	case []any:
		e.none = len(devices) == 0
		if len(devices) > maxListed {
			return field.ErrorList{field.TooMany(path, len(devices), maxListed)}
		}
		var errs field.ErrorList
		for j, value := range devices {
			n, ok := value.(int64)
			switch {
			case !ok || n < 0 || n >= 1<<31:
				errs = append(errs, field.Invalid(path.Index(j), value, "must be the index of a GPU, 0 or more"))
			case slices.Contains(e.match.Indexes, int32(n)):
				errs = append(errs, field.Duplicate(path.Index(j), n))
			default:
				e.match.Indexes = append(e.match.Indexes, int32(n))
			}
		}
		return errs
	default:
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, "must be all, or a list of indexes such as [0, 1]")}
	}
}
