// SPDX-License-Identifier: Apache-2.0

package migrate

import "github.com/cleave-dra/cleave/pkg/domain/policy"

// Formats are those whose files can be used in the place of NodePolicies.
func Formats() []policy.Format { return []policy.Format{FormatDevicePlugin(), FormatMIGParted()} }

// FormatDevicePlugin is that of NVIDIA's device plugin, of which each file is one policy, named after it.
func FormatDevicePlugin() policy.Format {
	return policy.Format{Name: "device-plugin", Decode: func(path string, data []byte) (*policy.Decoded, error) {
		imported, err := DevicePlugin(data, Options{File: path})
		if err != nil {
			return nil, err
		}
		p := *imported.Policies[0]
		p.Metadata.Name = ""
		imported.Policies[0] = &p
		return imported.decoded(), nil
	}}
}

// FormatMIGParted is that of mig-parted, which NVIDIA's MIG manager uses; each mig-config is a policy.
func FormatMIGParted() policy.Format {
	return policy.Format{Name: "mig-parted", Decode: func(path string, data []byte) (*policy.Decoded, error) {
		imported, err := MIGParted(data, Options{File: path})
		if err != nil {
			return nil, err
		}
		return imported.decoded(), nil
	}}
}

func (i *Import) decoded() *policy.Decoded {
	d := &policy.Decoded{Policies: i.Policies, LeftOut: i.LeftOut}
	for _, n := range i.Notes {
		d.Notes = append(d.Notes, n.String())
	}
	return d
}
