// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

const (
	capSysResource = 24
	cgroup2Magic   = 0x63677270
)

// host is what matters about the machine.
type host struct {
	// CgroupV1 means that the kubelet must be configured to accept cgroup version 1.
	CgroupV1 bool `json:"cgroupV1"`
	// PodGroups says that each pod has a control group.
	PodGroups bool `json:"podGroups"`
	// RestrictOOMScore says that containers cannot get a lower OOM score
	// than containerd has: the capability to lower it is missing.
	RestrictOOMScore bool `json:"restrictOOMScore"`
	// OwnKubeletDir says that /var/lib/kubelet was not there before.
	OwnKubeletDir bool   `json:"ownKubeletFolder"`
	Busybox       string `json:"busybox"`
	CNI           string `json:"cni"`
	// Sysctls are the kernel settings that the kubelet changes, as they were.
	Sysctls []sysctl `json:"sysctls,omitempty"`
}

func inspectHost() (host, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs("/sys/fs/cgroup", &fs); err != nil {
		return host{}, fmt.Errorf("inspect the control groups at /sys/fs/cgroup: %w", err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return host{}, fmt.Errorf("inspect the capabilities of this process: %w", err)
	}
	capable, err := hasSysResource(string(status))
	if err != nil {
		return host{}, err
	}
	_, err = os.Lstat(deviceManagerRoot)
	return host{
		CgroupV1:         fs.Type != cgroup2Magic,
		RestrictOOMScore: !capable,
		OwnKubeletDir:    errors.Is(err, os.ErrNotExist),
		Busybox:          busyboxPath(),
		CNI:              cniDir(),
		Sysctls:          readSysctls(),
	}, nil
}

// beforeKubelets corrects what of the machine a kubelet changes: another cluster, whose kubelet runs, knows how it was, and
// the last cluster to go restores it.
func (h *host) beforeKubelets() {
	kubeletRuns(h.asFoundBy)
}

// asFoundBy takes over what the cluster of a kubelet with this environment found. It reports whether there is one.
func (h *host) asFoundBy(environ []byte) bool {
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		dir, ok := bytes.CutPrefix(v, []byte(ownerVariable+"="))
		if !ok {
			continue
		}
		if s, err := readState(layout{string(dir)}); err == nil {
			h.OwnKubeletDir, h.Sysctls = s.Host.OwnKubeletDir, s.Host.Sysctls
			return true
		}
	}
	return false
}

// hasSysResource reads the effective capabilities from /proc/PID/status.
func hasSysResource(status string) (bool, error) {
	lines := bufio.NewScanner(strings.NewReader(status))
	for lines.Scan() {
		value, ok := strings.CutPrefix(lines.Text(), "CapEff:")
		if !ok {
			continue
		}
		set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return false, fmt.Errorf("parse the capabilities %q: %w", value, err)
		}
		return set&(1<<capSysResource) != 0, nil
	}
	return false, errors.New("parse the capabilities of this process: no line CapEff")
}

// ports are the TCP ports of the cluster, all on the loopback address.
type ports struct {
	APIServer         int `json:"apiServer"`
	EtcdClient        int `json:"etcdClient"`
	EtcdPeer          int `json:"etcdPeer"`
	Scheduler         int `json:"scheduler"`
	ControllerManager int `json:"controllerManager"`
	Kubelet           int `json:"kubelet"`
	KubeletHealth     int `json:"kubeletHealth"`
}

// choosePorts takes the port that people know for the API server where it is free, and any free ones for the rest.
func choosePorts(ctx context.Context) (ports, error) {
	free, err := FreePorts(ctx, loopback, 7, 6443)
	if err != nil {
		return ports{}, err
	}
	return ports{
		APIServer: free[0], EtcdClient: free[1], EtcdPeer: free[2], Scheduler: free[3], ControllerManager: free[4],
		Kubelet: free[5], KubeletHealth: free[6],
	}, nil
}
