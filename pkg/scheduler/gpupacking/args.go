// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// Args are the plugin's arguments in a KubeSchedulerConfiguration.
type Args struct {
	// Candidates is how many nodes are left to the allocator, 1 to 1000; 4 by default.
	Candidates int `json:"candidates"`
	// Strategy is that of pods whose annotation and DeviceClass name none: pack, the default, or spread.
	Strategy packing.Strategy `json:"strategy"`
	// Strategies are those of DeviceClasses, by name.
	Strategies map[string]packing.Strategy `json:"strategies"`
	// Drivers whose devices are packed even if nothing that they publish is counted or shared, as on nodes with whole GPUs only;
	// gpu.cleave.dev by default.
	Drivers []string `json:"drivers"`
}

// maxCandidates bound Candidates: more than that is what the scheduler does by itself.
const maxCandidates = 1000

// parseArgs decodes arguments strictly: a field that does not exist is an error that names it.
func parseArgs(object runtime.Object) (Args, error) {
	args := Args{Candidates: 4, Strategy: packing.Pack, Drivers: []string{v1alpha1.Group}}
	if err := DecodeArgs(object, &args); err != nil {
		return Args{}, fmt.Errorf("decode the arguments of %s: %w", Name, err)
	}
	if args.Candidates < 1 || args.Candidates > maxCandidates {
		return Args{}, fmt.Errorf("check the arguments of %s: candidates is %d, want 1 to %d", Name, args.Candidates, maxCandidates)
	}
	if _, err := packing.ParseStrategy(string(args.Strategy)); err != nil {
		return Args{}, fmt.Errorf("check the arguments of %s: strategy: %w", Name, err)
	}
	for _, class := range slices.Sorted(maps.Keys(args.Strategies)) {
		if _, err := packing.ParseStrategy(string(args.Strategies[class])); err != nil {
			return Args{}, fmt.Errorf("check the arguments of %s: strategies[%s]: %w", Name, class, err)
		}
	}
	return args, nil
}

// DecodeArgs reads arguments of a plugin, as kube-scheduler hands them over, into a struct, whose fields they overwrite; none
// leave it as it is. An unknown field is an error that names it.
func DecodeArgs(arguments runtime.Object, into any) error {
	raw, ok := arguments.(*runtime.Unknown)
	if arguments != nil && !ok {
		return fmt.Errorf("got a %T, want an object with fields", arguments)
	}
	if raw == nil || len(raw.Raw) == 0 {
		return nil
	}
	data, err := yaml.YAMLToJSON(raw.Raw)
	if err != nil {
		return err
	}
	strict, err := json.UnmarshalStrict(data, into)
	return errors.Join(append(strict, err)...)
}
