package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/mps"
	"github.com/cleave-dra/cleave/pkg/nvml"
	"github.com/cleave-dra/cleave/pkg/records"
)

// inspectFlags of `cleave inspect`.
type inspectFlags struct {
	slicesFlags
	pluginsDir string
	format     string
	mpsSocket  string
}

func newInspect() *cobra.Command {
	f := &inspectFlags{}
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Show a node's GPUs, what they offer and who holds what",
		Long: "inspect reads the GPUs of the machine it runs on, the partitions that exist, and the plugin's claim records.\n" +
			"It changes nothing. With --node-model it shows a model of a node instead.",
		Example: "  cleave inspect\n  cleave inspect --driver-root /run/nvidia/driver -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.format != "table" && f.format != "json" {
				return &usageError{fmt.Errorf("--output %q is not one of table, json", f.format)}
			}
			f.output = "table"
			if err := f.validate(); err != nil {
				return &usageError{err}
			}
			view, err := f.view(cmd.Context())
			if err != nil {
				return err
			}
			if f.format == "json" {
				return printJSON(cmd.OutOrStdout(), view)
			}
			return view.print(cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.addHardware(flags)
	flags.StringVar(&f.pluginsDir, "kubelet-plugins-dir", kubeletplugin.KubeletPluginsDir, "the kubelet's plugins folder, where the plugin keeps its records")
	flags.StringVar(&f.mpsSocket, "mps-socket", mps.DefaultSocket, "socket of cleave mps-supervisor; empty for none")
	flags.StringVarP(&f.format, "output", "o", "table", "table or json")
	return cmd
}

// nodeView is what inspect shows.
type nodeView struct {
	DriverVersion string    `json:"driverVersion"`
	GPUs          []gpuView `json:"gpus"`
	// Problems are GPUs that cannot be read.
	Problems []string `json:"problems,omitempty"`
}

// gpuView is one GPU.
type gpuView struct {
	Device  string `json:"device"`
	UUID    string `json:"uuid"`
	Product string `json:"product"`
	// MIG is "on", "off", or "no" where the board cannot be partitioned.
	MIG string `json:"mig"`
	// Offers tells what claims can get, Advice how an admin changes that; empty where there is nothing to change.
	Offers string `json:"offers"`
	// NoMPS says why the GPU is not shared by MPS, where the policy would have it so.
	NoMPS string `json:"noMPS,omitempty"`
	// NoTimeSlice is the like for time slices.
	NoTimeSlice string          `json:"noTimeSlice,omitempty"`
	Advice      string          `json:"advice,omitempty"`
	HeldBy      []string        `json:"heldBy,omitempty"`
	Shares      []shareView     `json:"shares,omitempty"`
	Partitions  []partitionView `json:"partitions,omitempty"`
}

// shareView is what one claim has of a shared GPU.
type shareView struct {
	// Kind is "timeslice" or "mps".
	Kind string `json:"kind"`
	// Has says in words what the claim has.
	Has    string `json:"has"`
	HeldBy string `json:"heldBy"`
}

// partitionView is a partition that exists.
type partitionView struct {
	Profile   string `json:"profile"`
	Placement string `json:"placement"`
	GI        int    `json:"gi"`
	UUID      string `json:"uuid,omitempty"`
	// HeldBy is a claim, or "nobody known": somebody else made it.
	HeldBy string `json:"heldBy"`
}

// view reads hardware and records.
func (f *inspectFlags) view(ctx context.Context) (*nodeView, error) {
	session, node, err := f.offered(ctx, f.noMPS(ctx))
	if err != nil {
		return nil, err
	}
	held, err := f.records()
	if err != nil {
		return nil, errors.Join(err, session.Close())
	}
	v := &nodeView{DriverVersion: node.DriverVersion}
	for _, p := range node.Problems {
		v.Problems = append(v.Problems, fmt.Sprintf("GPU %d: %v", p.Index, p.Err))
	}
	for i := range node.GPUs {
		g, err := viewGPU(ctx, session, &node.GPUs[i], held)
		if err != nil {
			return nil, errors.Join(err, session.Close())
		}
		v.GPUs = append(v.GPUs, *g)
	}
	return v, session.Close()
}

// inspectTimeout bounds the wait for the MPS supervisor.
const inspectTimeout = 2 * time.Second

// noMPS is why no MPS server can be started; nil where a supervisor answers, and for a model.
func (f *inspectFlags) noMPS(ctx context.Context) error {
	if f.model != "" {
		return nil
	}
	if f.mpsSocket == "" {
		return errors.New("--mps-socket is empty")
	}
	client, err := mps.Dial(f.mpsSocket)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	return errors.Join(client.Available(ctx), client.Close())
}

// records are the claims that the plugin has recorded; none where it has never run.
func (f *inspectFlags) records() ([]*records.Record, error) {
	if f.model != "" {
		return nil, nil
	}
	dir := filepath.Join(f.pluginsDir, f.driverName, "claims")
	return records.List(records.Disk{}, dir)
}

func viewGPU(ctx context.Context, session *nvml.Session, g *gpu.GPU, held []*records.Record) (*gpuView, error) {
	v := &gpuView{Device: g.PCI.DeviceName(), UUID: g.UUID, Product: g.ProductName}
	v.MIG, v.Offers, v.Advice = offers(g)
	v.NoMPS, v.NoTimeSlice = g.Offer.NoMPS, g.Offer.NoTimeSlice
	parts, err := session.Partitions(ctx, g)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		part := partitionView{Profile: g.MIG.ProfileName(p.ProfileID), Placement: fmt.Sprintf("%d:%d", p.Placement.Start, p.Placement.Size),
			GI: p.GI, UUID: p.UUID, HeldBy: "nobody known"}
		for _, r := range held {
			for _, d := range r.Partitions() {
				if d.GPU == v.Device && d.Partition.ProfileID == p.ProfileID && d.Partition.Placement == p.Placement {
					part.HeldBy = r.Claim.String()
				}
			}
		}
		v.Partitions = append(v.Partitions, part)
	}
	for _, r := range held {
		for _, d := range r.Devices {
			if d.GPU == v.Device && d.Share != nil {
				v.Shares = append(v.Shares, shareView{string(d.Share.Kind), describeShare(d.Share), r.Claim.String()})
			} else if d.GPU == v.Device && d.Partition == nil {
				v.HeldBy = append(v.HeldBy, r.Claim.String())
			}
		}
	}
	return v, nil
}

// describeShare says what a claim has of a shared GPU.
func describeShare(s *records.Share) string {
	has := []string{fmt.Sprintf("shares %d", s.Shares)}
	if s.Exclusive {
		has[0] = "the whole GPU"
	}
	if s.Memory > 0 {
		has = append(has, fmt.Sprintf("memory %d MiB", s.Memory>>20))
	}
	if s.Cores > 0 {
		has = append(has, fmt.Sprintf("cores %d%%", s.Cores))
	}
	if s.Interval != "" {
		has = append(has, "time slices "+s.Interval)
	}
	return strings.Join(has, ", ")
}

// offers says in words what a GPU offers and how an admin changes that.
func offers(g *gpu.GPU) (mig, offers, advice string) {
	var all []string
	partitions := 0
	for _, s := range g.Shapes() {
		switch {
		case s.IsPartition():
			partitions++
		case s.IsWhole():
			all = append(all, "whole")
		default:
			all = append(all, fmt.Sprintf("%s for %d", s.Share, g.Sharing(s.Share).Shares))
		}
	}
	whole := len(all) > 0
	if partitions > 0 {
		all = append(all, fmt.Sprintf("partitions at %d places", partitions))
	}
	offers = strings.Join(all, ", or ")
	if offers == "" {
		offers = "nothing by policy"
	}
	switch {
	case !g.MIG.Capable:
		return "no", offers, ""
	case len(g.MIG.Profiles) == 0:
		return onOff(g.MIG.Enabled), offers, "the driver tells no placements of partitions, so none are offered"
	case !g.MIG.NeedsReset:
		return onOff(g.MIG.Enabled), offers, ""
	case whole:
		return "off", offers, "for partitions of a GPU: drain the node, nvidia-smi -i <GPU> -mig 1, reset the GPU, restart the plugin"
	default:
		return "on", offers, "for a whole or shared GPU: drain the node, nvidia-smi -i <GPU> -mig 0, reset the GPU, restart the plugin"
	}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// print writes the view for people.
func (v *nodeView) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "driver %s\n\nDEVICE\tPRODUCT\tMIG\tOFFERS\tHELD BY\n", v.DriverVersion)
	for _, g := range v.GPUs {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", g.Device, g.Product, g.MIG, g.Offers, orDash(strings.Join(g.HeldBy, ", ")))
	}
	header := "\nSHARE OF\tBY\tHAS\tHELD BY\n"
	for _, g := range v.GPUs {
		for _, s := range g.Shares {
			fmt.Fprintf(t, "%s%s\t%s\t%s\t%s\n", header, g.Device, s.Kind, s.Has, s.HeldBy)
			header = ""
		}
	}
	header = "\nPARTITION OF\tPROFILE\tPLACE\tGI\tUUID\tHELD BY\n"
	for _, g := range v.GPUs {
		for _, p := range g.Partitions {
			fmt.Fprintf(t, "%s%s\t%s\t%s\t%d\t%s\t%s\n", header, g.Device, p.Profile, p.Placement, p.GI, orDash(p.UUID), p.HeldBy)
			header = ""
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print the GPUs: %w", err)
	}
	said := map[string]bool{}
	for _, g := range v.GPUs {
		if g.Advice != "" && !said[g.Advice] {
			said[g.Advice] = true
			fmt.Fprintln(w, g.Advice)
		}
		for _, no := range []struct{ what, why string }{{"by MPS", g.NoMPS}, {"by time slices", g.NoTimeSlice}} {
			if line := "not shared " + no.what + ": " + no.why; no.why != "" && !said[line] {
				said[line] = true
				fmt.Fprintln(w, line)
			}
		}
	}
	for _, p := range v.Problems {
		fmt.Fprintln(w, "not served:", p)
	}
	return nil
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
