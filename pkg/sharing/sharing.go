// Package sharing makes GPUs shared: time slices by the driver's nvidia-smi, MPS servers by the node's supervisor.
package sharing

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/mps"
	"github.com/cleave-dra/cleave/pkg/records"
)

// Supervisor is what is asked of the node's MPS supervisor.
type Supervisor interface {
	Ensure(ctx context.Context, r mps.Request) (mps.Endpoint, error)
	Release(ctx context.Context, gpuDevice string, claim types.UID) error
	Retain(ctx context.Context, gpuDevice string, claims []types.UID) error
}

// Run runs a program below a root folder, which is its / if it is not already, and returns what it prints.
type Run func(ctx context.Context, root string, program string, args ...string) (output []byte, err error)

// Sharing shares the GPUs of a node.
type Sharing struct {
	supervisor Supervisor
	roots      []string
	run        Run
}

// New makes a Sharing. roots are where the driver's files may be as this process sees them, one at least.
func New(supervisor Supervisor, roots []string, run Run) *Sharing {
	return &Sharing{supervisor: supervisor, roots: roots, run: run}
}

// smiTimeout bounds a run of nvidia-smi, which takes seconds on a loaded node; the kubelet waits 45 s for a claim.
const smiTimeout = 20 * time.Second

// SetTimeSlice sets the interval of a GPU's time slices. NVML has no function for it: nvidia-smi compute-policy is the
// driver's only public way. The driver keeps it until it is unloaded.
func (s *Sharing) SetTimeSlice(ctx context.Context, g *gpu.GPU, interval string) error {
	number := slices.Index(v1alpha1.Intervals(), v1alpha1.Interval(interval))
	if number < 0 {
		return fmt.Errorf("set the time slices of GPU %s: %q is no interval", g.PCI.DeviceName(), interval)
	}
	ctx, cancel := context.WithTimeout(ctx, smiTimeout)
	defer cancel()
	klog.FromContext(ctx).V(4).Info("Setting time slices", "gpu", g.PCI.DeviceName(), "interval", interval)
	root, smi := s.smi()
	output, err := s.run(ctx, root, smi, "compute-policy", "-i", g.UUID, "--set-timeslice", strconv.Itoa(number))
	if err != nil {
		return fmt.Errorf("set the time slices of GPU %s to %s with nvidia-smi: %w: %s", g.PCI.DeviceName(), interval, err, oneLine(output))
	}
	return nil
}

// smiPaths are where drivers put nvidia-smi, below their root.
var smiPaths = []string{"/usr/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi", "/usr/local/bin/nvidia-smi", "/opt/bin/nvidia-smi"}

// smi is the driver's root and the path of nvidia-smi below it, the usual one where there is none: the error names it.
func (s *Sharing) smi() (root, path string) {
	for _, root := range s.roots {
		for _, path := range smiPaths {
			// It may be a link that leads somewhere only once the root is the root.
			if info, err := os.Lstat(filepath.Join(root, path)); err == nil && !info.IsDir() {
				return filepath.Clean(root), path
			}
		}
	}
	return filepath.Clean(s.roots[0]), smiPaths[0]
}

// StartMPS makes a GPU's MPS server serve a claim. The server's defaults are what a claim can have at most, since a
// client can only go below them: its own part a container gets by its environment. A server that is the claim's alone
// has the claim's limits, and needs no policy that offers MPS.
func (s *Sharing) StartMPS(ctx context.Context, uid types.UID, g *gpu.GPU, limits *records.MPS) (pipeDir, shmDir string, err error) {
	settings, err := settings(g, limits)
	if err != nil {
		return "", "", err
	}
	endpoint, err := s.supervisor.Ensure(ctx, mps.Request{Claim: uid, Device: g.PCI.DeviceName(), UUID: g.UUID, PCI: g.PCI, Settings: settings})
	if err != nil {
		return "", "", fmt.Errorf("start the MPS server of GPU %s: %w", g.PCI.DeviceName(), err)
	}
	return endpoint.PipeDir, endpoint.ShmDir, nil
}

// settings of the server of a GPU.
func settings(g *gpu.GPU, limits *records.MPS) (mps.Settings, error) {
	sharing := g.Sharing(gpu.MPS)
	if limits == nil && sharing == nil {
		return mps.Settings{}, fmt.Errorf("GPU %s is not shared by MPS: %s", g.PCI.DeviceName(), why(g))
	}
	if limits == nil {
		return mps.Settings{SharedMemory: sharing.SharedMemory, ActiveThreadPercentage: int(sharing.Cores.Total), PinnedMemory: sharing.Memory.Total}, nil
	}
	own := mps.Settings{SharedMemory: v1alpha1.DefaultSharedMemory, ActiveThreadPercentage: int(limits.ThreadPercentage), PinnedMemory: limits.Memory}
	if sharing != nil {
		own.SharedMemory = sharing.SharedMemory
	}
	return own, nil
}

func why(g *gpu.GPU) string {
	if g.Offer != nil && g.Offer.NoMPS != "" {
		return g.Offer.NoMPS
	}
	return "the node's policy does not offer it"
}

// StopMPS takes a claim from a GPU's MPS server.
func (s *Sharing) StopMPS(ctx context.Context, uid types.UID, gpuDevice string) error {
	if err := s.supervisor.Release(ctx, gpuDevice, uid); err != nil {
		return fmt.Errorf("take claim %s from the MPS server of GPU %s: %w", uid, gpuDevice, err)
	}
	return nil
}

// RetainMPS takes all other claims from a GPU's MPS server.
func (s *Sharing) RetainMPS(ctx context.Context, gpuDevice string, uids []types.UID) error {
	if err := s.supervisor.Retain(ctx, gpuDevice, uids); err != nil {
		return fmt.Errorf("bring the MPS server of GPU %s in line: %w", gpuDevice, err)
	}
	return nil
}

// maxOutput bounds what is kept of a program's output, in bytes.
const maxOutput = 4096

// InRoot runs a program of the driver below the driver's root, with nothing of this process's environment.
func InRoot(ctx context.Context, root, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	cmd.Dir = "/"
	if root != "/" {
		// The program wants the libraries of its own root.
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	}
	cmd.WaitDelay = time.Second
	out := &limited{}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", ctx.Err(), err) // by itself it says only that the program was killed
	}
	return out.kept.Bytes(), err
}

// limited keeps the first bytes that are written to it. The buffer is not embedded: by its ReadFrom it would be filled
// past Write.
type limited struct{ kept bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if left := maxOutput - l.kept.Len(); left > 0 {
		l.kept.Write(p[:min(left, len(p))])
	}
	return len(p), nil
}

// oneLine makes output fit for an error, which goes into an Event.
func oneLine(output []byte) string {
	return strings.ToValidUTF8(strings.Join(strings.Fields(string(output)), " "), "?")
}
