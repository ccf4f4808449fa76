// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

// Machine is the GPUs of a machine, or of a node model, and the policy for them, as flags select them.
type Machine struct {
	// Model of a node; empty for this machine.
	Model string
	// NodeName of the Node object, DriverName of the DRA driver.
	NodeName   string
	DriverName string
	Policy     PolicyFlags
	WithoutMPS bool
	// AppliedPolicy is the name of the policy, once Inventory or Offered has read it.
	AppliedPolicy string
	// CgroupRoot is where the cgroup v2 hierarchy is mounted.
	CgroupRoot string

	driverRoot  string
	mountedRoot string // where this process sees driverRoot; empty if at the same path
	library     string
	sysfs       string
}

// AddHardware adds the flags that select the GPUs and the policy.
func (f *Machine) AddHardware(flags *pflag.FlagSet) {
	f.AddNode(flags)
	f.Policy.Add(flags)
}

// AddNode adds the flags that select the GPUs.
func (f *Machine) AddNode(flags *pflag.FlagSet) {
	flags.StringVar(&f.Model, "node-model", "", "read a node of this model instead of this machine")
	f.addMachine(flags)
}

// addMachine adds the flags that locate this machine's GPUs.
func (f *Machine) addMachine(flags *pflag.FlagSet) {
	AddDriver(flags, &f.driverRoot, &f.mountedRoot, &f.library, driverroot.Auto)
	flags.StringVar(&f.sysfs, "sysfs", "/sys", "the node's sysfs")
	flags.StringVar(&f.CgroupRoot, "cgroup-root", "/sys/fs/cgroup", "root of the cgroup v2 hierarchy")
	flags.StringVar(&f.DriverName, "driver-name", v1alpha1.Group, "name of the DRA driver")
}

// AddDriver adds the flags that locate the NVIDIA driver.
func AddDriver(flags *pflag.FlagSet, root, mounted, library *string, defaultRoot string) {
	flags.StringVar(root, "driver-root", defaultRoot,
		"root of the NVIDIA driver's files on the host; auto for the first of / and /run/nvidia/driver that has a driver")
	flags.StringVar(mounted, "container-driver-root", "",
		"where this process sees the driver root, or with --driver-root=auto the host's /; empty if at the same path")
	flags.StringVar(library, "nvml-library", "", "path of libnvidia-ml.so.1; empty to search the driver root")
}

// Validate checks the flags without reading hardware, and sets the default of the node's name.
func (f *Machine) Validate() error {
	if f.Model != "" && f.library != "" {
		return errors.New("--node-model and --nvml-library exclude each other: a model has its own library")
	}
	if f.NodeName == "" {
		f.NodeName = f.Model
	}
	if f.NodeName == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("find the host's name (set --node-name): %w", err)
		}
		f.NodeName = strings.ToLower(host)
	}
	return errors.Join(nodeslices.CheckNodeName(f.NodeName), nodeslices.CheckDriverName(f.DriverName))
}

// Inventory reads the machine or model.
func (f *Machine) Inventory(ctx context.Context) (*policy.Node, error) {
	var noMPS error
	if f.WithoutMPS {
		noMPS = errors.New("--without-mps")
	}
	session, node, err := f.Offered(ctx, func(Session) (policy.Capabilities, error) { return policy.Capabilities{MPS: noMPS}, nil })
	if err != nil {
		return nil, err
	}
	return node, session.Close()
}

// Offered reads the machine or model with the offers of its policy.
func (f *Machine) Offered(ctx context.Context, look func(Session) (policy.Capabilities, error)) (Session, *policy.Node, error) {
	name, p, err := f.Policy.load()
	if err != nil {
		return nil, nil, err
	}
	f.AppliedPolicy = name
	session, err := f.Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	node := session.Node()
	if err := policy.Check(p, node); err != nil {
		return nil, nil, errors.Join(UsageError(fmt.Errorf("policy %q does not fit this node: %w", name, err)), session.Close())
	}
	if f.Model != "" {
		node, _ = policy.InMIGMode(p, node)
	}
	means, err := look(session)
	if err != nil {
		return nil, nil, errors.Join(err, session.Close())
	}
	means.CgroupMemory = func(g *gpu.GPU) bool {
		limits, err := session.LimitsMemory(ctx, g.PCI, f.CgroupRoot)
		return limits && err == nil
	}
	return session, policy.Apply(p, node, means), nil
}

// Session provides a node's GPUs: an NVML session, or a captured inventory.
type Session interface {
	Node() *gpu.Node
	Partitions(ctx context.Context, g *gpu.GPU) ([]gpu.Partition, error)
	LimitsMemory(ctx context.Context, pci gpu.PCIAddress, cgroupRoot string) (bool, error)
	Close() error
}

// modelNode is a fresh node of a known model, whose GPUs have no partitions and whose driver limits no memory by cgroup.
type modelNode struct{ inventory *gpu.Node }

func (m modelNode) Node() *gpu.Node { return m.inventory }

func (modelNode) Partitions(context.Context, *gpu.GPU) ([]gpu.Partition, error) { return nil, nil }

func (modelNode) LimitsMemory(context.Context, gpu.PCIAddress, string) (bool, error) {
	return false, nil
}

func (modelNode) Close() error { return nil }

// Open opens the machine or model.
func (f *Machine) Open(ctx context.Context) (Session, error) {
	if f.Model != "" {
		inventory, err := models.Load(f.Model)
		if errors.Is(err, models.ErrUnknown) {
			return nil, UsageError(err)
		}
		if err != nil {
			return nil, err
		}
		return modelNode{inventory}, nil
	}
	roots := driverroot.Here(driverroot.Candidates(f.driverRoot, f.mountedRoot))
	session, err := nvml.Open(ctx, nvml.Options{
		DriverRoot: roots[0], OtherRoots: roots[1:], LibraryPath: f.library, Sysfs: os.DirFS(f.sysfs).(fs.ReadLinkFS),
	})
	if err != nil {
		return nil, err // not an interface with a nil pointer
	}
	return session, nil
}
