// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cleaveProgram is the command line's.
const cleaveProgram = "cleave"

// commands measures what a person waits for: the overview of the cluster, and why a claim fits nowhere. They read all slices and
// claims from the API server.
func (b *bench) commands(ctx context.Context, r *report) error {
	const tooLarge = "too-large"
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: tooLarge, Namespace: namespace}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: whole, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 9, // a node has eight
	}}}
	claims := b.client.ResourceV1().ResourceClaims(namespace)
	if _, err := claims.Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create claim %s: %w", tooLarge, err)
	}
	for _, c := range []struct {
		name string
		args []string
		exit int
	}{
		{"inspect --from-cluster", []string{"inspect", "--from-cluster"}, 0},
		{"explain", []string{"explain", "claim", "-n", namespace, tooLarge}, 1}, // it fits no node
	} {
		if err := b.command(ctx, r, c.name, c.args, c.exit); err != nil {
			return err
		}
	}
	if err := claims.Delete(ctx, tooLarge, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete claim %s: %w", tooLarge, err)
	}
	return nil
}

// command measures one, which must end with an exit code. Its output is in the directory of the run.
func (b *bench) command(ctx context.Context, r *report, name string, args []string, exit int) error {
	out, err := os.Create(filepath.Join(b.dir, args[0]+".txt"))
	if err != nil {
		return fmt.Errorf("create a file for the output of cleave %s: %w", name, err)
	}
	defer out.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(b.source, "bin", cleaveProgram), append(args, "--kubeconfig", b.cluster.Kubeconfig())...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	began := time.Now()
	var ended *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &ended) {
		return fmt.Errorf("run cleave %s: %w", name, err)
	}
	took := time.Since(began)
	if code := cmd.ProcessState.ExitCode(); code != exit {
		return fmt.Errorf("cleave %s ended with code %d instead of %d: its output is in %s", name, code, exit, out.Name())
	}
	r.set(fmt.Sprintf(commandSeconds, name, b.allocated), "", took.Seconds())
	r.set(fmt.Sprintf(commandMemory, name), "", float64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss)*1024/1e6)
	return out.Close()
}
