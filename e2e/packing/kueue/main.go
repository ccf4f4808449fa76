// SPDX-License-Identifier: Apache-2.0

// Command kueue decodes one YAML document into Kueue's own type of its kind, strictly, and writes it as JSON.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	configapi "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueueapi "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	data, err := io.ReadAll(os.Stdin)
	if err != nil {
		return fmt.Errorf("read the document: %w", err)
	}
	var kind struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal(data, &kind); err != nil {
		return fmt.Errorf("decode the kind: %w", err)
	}
	object := typeOf(kind.APIVersion, kind.Kind)
	if object == nil {
		return fmt.Errorf("find the type of %s %s: Kueue 0.19 has none", kind.APIVersion, kind.Kind)
	}
	if err := yaml.UnmarshalStrict(data, object); err != nil {
		return fmt.Errorf("decode %s: %w", kind.Kind, err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(object); err != nil {
		return fmt.Errorf("encode %s: %w", kind.Kind, err)
	}
	return nil
}

// typeOf returns a new object of a kind, or nil if the version of Kueue does not have it.
func typeOf(apiVersion, kind string) any {
	switch apiVersion + " " + kind {
	case configapi.SchemeGroupVersion.String() + " Configuration":
		return &configapi.Configuration{}
	case kueueapi.SchemeGroupVersion.String() + " ResourceFlavor":
		return &kueueapi.ResourceFlavor{}
	case kueueapi.SchemeGroupVersion.String() + " ClusterQueue":
		return &kueueapi.ClusterQueue{}
	case kueueapi.SchemeGroupVersion.String() + " LocalQueue":
		return &kueueapi.LocalQueue{}
	case kueueapi.SchemeGroupVersion.String() + " WorkloadPriorityClass":
		return &kueueapi.WorkloadPriorityClass{}
	}
	return nil
}
