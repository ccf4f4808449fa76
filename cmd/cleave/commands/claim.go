// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/deployments/manifests"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/tools/shortform"
)

// claimFlags of `cleave claim`.
type claimFlags struct {
	shortform.Options
	output string
}

func newClaim() *cobra.Command {
	f := &claimFlags{}
	cmd := &cobra.Command{
		Use:   "claim FORM",
		Short: "Print the ResourceClaimTemplate of a short form",
		Long: "claim prints a ResourceClaimTemplate for GPUs, and for CPUs and network cards near them, from a short form: parts\n" +
			"between commas, in any order.\n\n" +
			"  4 gpus                whole GPUs\n" +
			"  1 shared, 1 mps       time-sliced or MPS shares\n" +
			"  2 1g.10gb             MIG partitions of a profile\n" +
			"  memory >= 40Gi        least memory of each; of a share, its amount\n" +
			"  48 cpus               CPUs of dra-driver-cpu, grouped by NUMA node\n" +
			"  4 nics                network cards of dranet\n" +
			"  one numa node         all near one NUMA node\n" +
			"  one pcie root         GPUs and network cards under one PCIe root complex\n" +
			"  one nvlink domain     GPUs that reach each other over NVLink\n\n" +
			"A condition is a guarantee: a pod waits until it can be met. \"cleave explain\" says what is missing.",
		Example: "  cleave claim \"4 gpus, 48 cpus, 4 nics, one numa node\"\n" +
			"  cleave claim \"1 gpu, 1 nic, one pcie root\" --nic-class rdma.example.com\n" +
			"  cleave claim \"2 1g.10gb, one numa node\" | kubectl apply -f -\n" +
			"  cleave claim \"1 shared, memory >= 20Gi\" | cleave explain -f -",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.UsageError(fmt.Errorf("no short form is given: %s", shortform.Expected))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return cli.UsageError(err)
			}
			profiles, err := profilesOfClasses()
			if err != nil {
				return err
			}
			form, err := shortform.Parse(strings.Join(args, " "), profiles)
			if err != nil {
				return cli.UsageError(err)
			}
			for _, note := range form.Notes() {
				fmt.Fprintf(cmd.ErrOrStderr(), "cleave: %s\n", note)
			}
			return printTemplate(cmd.OutOrStdout(), form.Template(f.Options), f.output)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.Name, "name", "", "name of the template; empty for one made of the form")
	flags.StringVar(&f.CPUClass, "cpu-class", shortform.CPUClass, "DeviceClass of CPUs")
	flags.StringVar(&f.NICClass, "nic-class", shortform.NICClass, "DeviceClass of network cards")
	flags.StringVar(&f.NUMANode, "numa-attribute", string(shortform.NUMANodeAttribute),
		"attribute of \"one numa node\"; "+string(shortform.PreviousNUMANodeAttribute)+" for dra-driver-cpu up to v0.2.0 and dranet up to v1.4.0")
	flags.StringVar(&f.Driver, "driver-name", v1alpha1.Group, "name of the DRA driver")
	flags.StringVarP(&f.output, "output", "o", "yaml", "yaml or json")
	return cmd
}

// check validates the flags.
func (f *claimFlags) check() error {
	if f.output != "yaml" && f.output != "json" {
		return fmt.Errorf("--output %q is not one of yaml, json", f.output)
	}
	for _, name := range []struct{ flag, value string }{{"name", f.Name}, {"cpu-class", f.CPUClass}, {"nic-class", f.NICClass}} {
		if name.value == "" && name.flag == "name" {
			continue
		}
		if msgs := validation.IsDNS1123Subdomain(name.value); len(msgs) > 0 {
			return fmt.Errorf("--%s %q cannot be the name of an object: %s", name.flag, name.value, strings.Join(msgs, "; "))
		}
	}
	domain, name, _ := strings.Cut(f.NUMANode, "/")
	if len(validation.IsDNS1123Subdomain(domain)) > 0 || len(validation.IsCIdentifier(name)) > 0 {
		return fmt.Errorf("--numa-attribute %q is not the name of an attribute with its domain, such as %s", f.NUMANode,
			shortform.NUMANodeAttribute)
	}
	return nodeslices.CheckDriverName(f.Driver)
}

// profilesOfClasses are the MIG profiles of the DeviceClasses that come with Cleave.
func profilesOfClasses() ([]string, error) {
	classes, err := manifests.Classes()
	if err != nil {
		return nil, err
	}
	var profiles []string
	for _, class := range classes {
		profile, is := strings.CutPrefix(strings.TrimSuffix(class.Name, ".cleave.dev"), "mig-")
		if is && profile != "timeslice" && profile != "mps" {
			profiles = append(profiles, strings.NewReplacer(".me", "+me", ".gfx", "+gfx").Replace(profile))
		}
	}
	return profiles, nil
}

// printedTemplate is a template without the fields that nobody writes.
type printedTemplate struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Spec resourceapi.ResourceClaimSpec `json:"spec"`
	} `json:"spec"`
}

// printTemplate writes a template in a format.
func printTemplate(w io.Writer, template *resourceapi.ResourceClaimTemplate, form string) error {
	out := printedTemplate{TypeMeta: template.TypeMeta}
	out.Metadata.Name, out.Spec.Spec = template.Name, template.Spec.Spec
	return cli.PrintAs(w, form, out)
}
