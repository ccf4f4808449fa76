// SPDX-License-Identifier: Apache-2.0

package aligned

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/process"
)

// kubeletDir is where the CPU driver looks for the kubelet (kubeletPluginPath of its pkg/driver/driver.go), whose directory is elsewhere here.
const kubeletDir = "/var/lib/kubelet"

// inRoom runs a program with mounts of its own: it finds the kubelet, CDI, NRI and, if given, /sys where it looks for them. New mounts of
// the machine, such as the network namespaces of pods, are there, too.
const inRoom = `mount -t tmpfs tmpfs /run && mkdir /run/nri /run/cdi && mount --bind "$NRI" /run/nri && mount --bind "$CDI" /run/cdi &&
mount --bind "$KUBELET" ` + kubeletDir + ` && { [ -z "$SYS" ] || mount --rbind "$SYS" /sys; } && exec "$0" "$@"`

// start starts a driver, and waits until it publishes enough devices.
func (b *bed) start(ctx context.Context, driver, program string, devices int, variables []string, args ...string) error {
	c := b.client.Cluster
	args = append([]string{"--mount", "--propagation", "slave", "bash", "-c", inRoom, program, "--kubeconfig=" + c.Kubeconfig(),
		"--hostname-override=" + c.NodeName(), "--bind-address=127.0.0.1:0", "--v=4"}, args...)
	cmd := exec.Command("unshare", args...) //nolint:noctx // it ends with the cluster
	cmd.Env = slices.Concat(os.Environ(), c.Environment(), []string{"NRI=" + cluster.NRIDir(c), "CDI=" + c.CDIDir(), "KUBELET=" + c.KubeletDir()}, variables)
	dir, err := c.GuestDir(driver)
	if err != nil {
		return err
	}
	p, err := process.Start(cmd, filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	err = b.client.WaitSlices(ctx, driver, func(pool []resourceapi.ResourceSlice) bool {
		select {
		case <-p.Ended():
			return true
		default:
			return len(pool) == 1 && len(pool[0].Spec.Devices) == devices
		}
	})
	if err = errors.Join(err, p.Err()); err != nil {
		return fmt.Errorf("start the driver %s: %w; its log ends with:\n%s", driver, err, p.LogTail(40))
	}
	return nil
}

// startCPUs starts dra-driver-cpu on a machine whose CPUs are in two NUMA nodes.
func (b *bed) startCPUs(ctx context.Context, programs string) error {
	root, err := b.client.Cluster.GuestDir("cpus")
	if err != nil {
		return err
	}
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return fmt.Errorf("read the CPUs of this process: %w", err)
	}
	var all []int
	for cpu := range len(allowed) * 64 {
		if allowed.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	if len(all) < 2 {
		return errors.New("divide the CPUs into NUMA nodes: there is one")
	}
	b.cpus = [2][]int{all[:len(all)/2], all[len(all)/2 : len(all)/2*2]}
	for name, text := range cpuFiles(b.cpus) {
		path := filepath.Join(root, "sys/devices/system", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write the CPUs: %w", err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			return fmt.Errorf("write the CPUs: %w", err)
		}
	}
	// The kubelet connects to the sockets under the names that the driver gives it.
	for _, name := range []string{"plugins", "plugins_registry"} {
		err := os.Symlink(filepath.Join(b.client.Cluster.KubeletDir(), name), filepath.Join(kubeletDir, name))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("lead the CPU driver to the kubelet: %w", err)
		}
	}
	return b.start(ctx, "dra.cpu", filepath.Join(programs, "dracpu"), len(b.cpus), []string{"HOST_ROOT=" + root, "SYS="})
}

// cpuFiles are what dra-driver-cpu reads below /sys/devices/system (pkg/cpuinfo/cpuinfo.go).
func cpuFiles(numas [2][]int) map[string]string {
	files := map[string]string{"cpu/smt/control": "off"}
	var online []string
	for numa, cpus := range numas {
		files[fmt.Sprintf("node/node%d/cpulist", numa)] = list(cpus)
		online = append(online, list(cpus))
		for _, cpu := range cpus {
			dir := fmt.Sprintf("cpu/cpu%d/", cpu)
			files[dir+"topology/physical_package_id"] = fmt.Sprint(numa)
			files[dir+"topology/core_id"] = fmt.Sprint(cpu)
			files[dir+fmt.Sprintf("node%d/cpulist", numa)] = list(cpus)
			files[dir+"cache/index3/level"] = "3"
			files[dir+"cache/index3/id"] = fmt.Sprint(numa)
			files[dir+"cache/index3/shared_cpu_list"] = list(cpus)
		}
	}
	files["cpu/online"] = strings.Join(online, ",")
	return files
}

// list formats CPUs as Linux does ranges of one.
func list(cpus []int) string {
	var words []string
	for _, cpu := range cpus {
		words = append(words, fmt.Sprint(cpu))
	}
	return strings.Join(words, ",")
}

// nics are the network cards of the node model hgx-h100: by interface, the PCI path.
var nics = map[string]string{
	"nic0": "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0",
	"nic1": "pci0000:3c/0000:3c:01.0/0000:3d:00.0/0000:3e:02.0/0000:42:00.0",
	"nic2": "pci0000:4b/0000:4b:01.0/0000:4c:00.0/0000:4d:02.0/0000:51:00.0",
	"nic3": "pci0000:5a/0000:5a:01.0/0000:5b:00.0/0000:5c:02.0/0000:60:00.0",
	"nic4": "pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:02.0/0000:9c:00.0",
	"nic5": "pci0000:bd/0000:bd:01.0/0000:be:00.0/0000:bf:02.0/0000:c2:00.0",
	"nic6": "pci0000:cb/0000:cb:01.0/0000:cc:00.0/0000:cd:02.0/0000:d0:00.0",
	"nic7": "pci0000:d9/0000:d9:01.0/0000:da:00.0/0000:db:02.0/0000:de:00.0",
}

// nicDriver is the driver of the network cards, below /sys, to which their link leads. dranet leaves out cards without one
// (isAllocatableNetworkDevice of its pkg/inventory/db.go).
const nicDriver = "bus/pci/drivers/mlx5_core"

// startNICs starts dranet with the /sys of the simulated node, whose cards have virtual interfaces.
func (b *bed) startNICs(ctx context.Context, programs string) error {
	dir, err := b.client.Cluster.GuestDir("nics")
	if err != nil {
		return err
	}
	sys := filepath.Join(dir, "sys")
	for _, name := range slices.Sorted(maps.Keys(nics)) {
		if err := b.addNIC(ctx, sys, name, nics[name]); err != nil {
			return fmt.Errorf("add the network card %s: %w", name, err)
		}
	}
	return b.start(ctx, "dra.net", filepath.Join(programs, "dranet"), len(nics), []string{"SYS=" + sys},
		"--filter=\"dra.net/pciAddress\" in attributes", "--db-path="+filepath.Join(dir, "dranet.db"), "--cloud-provider-hint=NONE",
		"--kubelet-root-dir="+b.client.Cluster.KubeletDir())
}

// addNIC copies a card of the simulated node to another /sys, and gives it an interface there and on the machine.
func (b *bed) addNIC(ctx context.Context, sys, name, path string) error {
	device, simulated := filepath.Join(sys, "devices", path), filepath.Join(b.gpus.Root(), "sys", "devices", path)
	if err := os.CopyFS(device, os.DirFS(simulated)); err != nil {
		return err
	}
	words := map[string]string{}
	for _, file := range []string{"vendor", "device", "class"} {
		data, err := os.ReadFile(filepath.Join(simulated, file))
		if err != nil {
			return err
		}
		words[file] = strings.ToUpper(strings.TrimPrefix(strings.TrimSpace(string(data)), "0x"))
	}
	// By this, dranet finds the class of a device (parseModaliasData of github.com/jaypipes/ghw/pkg/pci).
	class := words["class"]
	alias := fmt.Sprintf("pci:v0000%sd0000%ssv00000000sd00000000bc%ssc%si%s\n", words["vendor"], words["device"], class[:2], class[2:4], class[4:])
	for _, dir := range []string{filepath.Join(device, "net", name), filepath.Join(sys, "bus/pci/devices"), filepath.Join(sys, nicDriver),
		filepath.Join(sys, "class/net")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	out, err := exec.CommandContext(ctx, "ip", "link", "add", name, "type", "veth", "peer", "name", "far-"+name).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(device, "modalias"), []byte(alias), 0o600),
		os.Symlink(filepath.Join("../../../devices", path), filepath.Join(sys, "bus/pci/devices", filepath.Base(path))),
		os.Symlink(filepath.Join("../../devices", path, "net", name), filepath.Join(sys, "class/net", name)),
	)
}

// tearDown removes the interfaces, which the machine has where the tests do not run apart.
func tearDown(ctx context.Context) error {
	links, err := os.ReadDir("/sys/class/net")
	if err != nil {
		return fmt.Errorf("list the interfaces: %w", err)
	}
	for _, l := range links {
		if name, ok := strings.CutPrefix(l.Name(), "far-"); ok && nics[name] != "" {
			err = errors.Join(err, exec.CommandContext(ctx, "ip", "link", "delete", l.Name()).Run())
		}
	}
	for _, name := range []string{"plugins", "plugins_registry"} {
		if path := filepath.Join(kubeletDir, name); isLink(path) {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}
