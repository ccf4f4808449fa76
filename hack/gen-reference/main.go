// SPDX-License-Identifier: Apache-2.0

// gen-reference writes docs/reference.md from the code: flags, metrics, what slices carry, parameters, policies, and the
// scheduler's plugin.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	cleavenode "github.com/cleave-dra/cleave/cmd/cleave-node/commands"
	cleave "github.com/cleave-dra/cleave/cmd/cleave/commands"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/driver/health"
	"github.com/cleave-dra/cleave/pkg/driver/plugin"
)

func main() {
	to := flag.String("o", "docs/reference.md", "file to write")
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	text, err := generate(*root)
	if err == nil {
		err = os.WriteFile(*to, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gen-reference:", err)
		os.Exit(1)
	}
}

// generate makes the whole document.
func generate(root string) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("# Reference\n\nFor everyone who writes claims, policies, alerts or command lines. Written by `make reference` " +
		"from the code.\n")
	entries(&b, "Attributes of devices",
		"Names without a domain are in the driver's: `device.attributes[\"gpu.cleave.dev\"].uuid`.", nodeslices.Attributes())
	entries(&b, "Capacities of devices", "", nodeslices.Capacities())
	p, err := readPackages(root)
	if err != nil {
		return nil, err
	}
	p.constants(&b, "Taints of devices", "Taint", "api/v1alpha1", "pkg/domain/nodeslices")
	p.constants(&b, "Labels of nodes", "Label", "api/v1alpha1")
	b.WriteString("\n## Metrics\n\nServed at `/metrics` of `--metrics-address`, alongside those of the Go runtime and the process.\n\n" +
		"| metric | labels | what |\n| --- | --- | --- |\n")
	for _, m := range plugin.Metrics() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.Name, strings.Join(m.Labels, ", "), cell(m.Help))
	}
	if err := events(&b, root); err != nil {
		return nil, err
	}
	if err := p.scheduler(&b, root); err != nil {
		return nil, err
	}
	b.WriteString("\n## XIDs\n\nErrors of the NVIDIA driver by number: [health.md](health.md#xids).\n\n| XID | what happened | class |\n" +
		"| --- | --- | --- |\n")
	for _, x := range health.KnownXIDs() {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", x.Numbers(), x.What, x.Class)
	}
	if err := p.kinds(&b, "api/v1alpha1", "ShareConfig", "NodePolicy"); err != nil {
		return nil, err
	}
	commandLines(&b, "Commands of cleave", "For people. Exit codes: "+cleave.ExitCodes+". `cleave completion` is for\n"+
		"[shells](explain.md#as-a-plugin-of-kubectl).", cleave.New("cleave"))
	commandLines(&b, "Commands of cleave-node", "On nodes. Exit codes: "+cli.ExitCodes+". Flags of subcommands that run as services can also "+
		"be set by the environment\nvariable of their name: `--node-name` by `NODE_NAME`.", cleavenode.New())
	return b.Bytes(), nil
}

func entries(b *bytes.Buffer, title, intro string, list []nodeslices.Entry) {
	fmt.Fprintf(b, "\n## %s\n\n", title)
	if intro != "" {
		fmt.Fprintf(b, "%s\n\n", intro)
	}
	b.WriteString("| name | type | devices | what |\n| --- | --- | --- | --- |\n")
	for _, e := range list {
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", e.Name, e.Type, e.On, cell(e.Text))
	}
}

// cell makes text fit for a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// commandLines writes the flags of every subcommand that people call.
func commandLines(b *bytes.Buffer, title, intro string, root *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n", title, intro)
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		if c != root {
			fmt.Fprintf(b, "\n### `%s`\n\n%s.\n", c.UseLine(), strings.TrimSuffix(c.Short, "."))
			flags(b, c)
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)
}

func flags(b *bytes.Buffer, c *cobra.Command) {
	header := "\n| flag | default | what |\n| --- | --- | --- |\n"
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		b.WriteString(header)
		header = ""
		value := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			value = "`" + f.DefValue + "`"
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, value, cell(f.Usage))
	})
}
