// SPDX-License-Identifier: Apache-2.0

package models

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

//go:embed *.json
var files embed.FS

// ErrUnknown is wrapped by Load for a model that does not exist.
var ErrUnknown = errors.New("unknown node model")

// Names lists the models, sorted.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil // the directory is part of the program
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".json"))
	}
	return names
}

// Load returns the inventory of a fresh node of a model.
func Load(model string) (*gpu.Node, error) {
	if !slices.Contains(Names(), model) {
		return nil, fmt.Errorf("%w %q: choose one of %s", ErrUnknown, model, strings.Join(Names(), ", "))
	}
	data, err := files.ReadFile(model + ".json")
	if err != nil {
		return nil, fmt.Errorf("read node model %s: %w", model, err)
	}
	node := &gpu.Node{}
	if err := json.Unmarshal(data, node); err != nil {
		return nil, fmt.Errorf("decode node model %s: %w", model, err)
	}
	return node, nil
}
