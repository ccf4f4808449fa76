// SPDX-License-Identifier: Apache-2.0

// Command gen-policyschema writes the schema of a NodePolicy, by which the Helm chart checks the policies in its values.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

func main() {
	output := flag.String("o", "deployments/helm/cleave/files/nodepolicy.schema.json", "file to write")
	flag.Parse()
	if err := run(*output); err != nil {
		fmt.Fprintln(os.Stderr, "gen-policyschema:", err)
		os.Exit(1)
	}
}

func run(output string) error {
	data, err := schema()
	if err != nil {
		return err
	}
	if err := os.WriteFile(output, data, 0o644); err != nil {
		return fmt.Errorf("write the schema: %w", err)
	}
	return nil
}

func schema() ([]byte, error) {
	data, err := json.MarshalIndent(v1alpha1.NodePolicySchema(), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the schema: %w", err)
	}
	return append(data, '\n'), nil
}
