// SPDX-License-Identifier: Apache-2.0

// Command gen-nodemodels writes the inventories of the node models that cleave offers offline, as the simulator has them.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

func main() {
	output := flag.String("o", "pkg/tools/inspect/models", "directory to write to")
	flag.Parse()
	if err := run(context.Background(), *output); err != nil {
		fmt.Fprintln(os.Stderr, "gen-nodemodels:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, output string) error {
	for _, model := range simulated.NodeModels() {
		data, err := inventory(ctx, model)
		if err != nil {
			return fmt.Errorf("read the inventory of node model %s: %w", model, err)
		}
		if err := os.WriteFile(filepath.Join(output, model+".json"), data, 0o644); err != nil {
			return fmt.Errorf("write node model %s: %w", model, err)
		}
	}
	return nil
}

// inventory is what discovery finds on a fresh node of a model, as JSON with a line for each GPU.
func inventory(ctx context.Context, model string) ([]byte, error) {
	session, err := simulated.Open(ctx, model)
	if err != nil {
		return nil, err
	}
	node := *session.Node()
	if len(node.Problems) > 0 {
		return nil, errors.Join(node.Problems[0].Err, session.Close())
	}
	gpus := node.GPUs
	node.GPUs = []gpu.GPU{}
	data, err := json.Marshal(node)
	if err != nil {
		return nil, errors.Join(err, session.Close())
	}
	var lines [][]byte
	for i := range gpus {
		line, err := json.Marshal(&gpus[i])
		if err != nil {
			return nil, errors.Join(err, session.Close())
		}
		lines = append(lines, line)
	}
	list := append([]byte("\"GPUs\":[\n"), bytes.Join(lines, []byte(",\n"))...)
	data = bytes.Replace(data, []byte(`"GPUs":[]`), append(list, "\n]"...), 1)
	return append(data, '\n'), session.Close()
}
