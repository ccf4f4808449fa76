// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// Sysfs is the PCI and NUMA part of the node's /sys, with paths relative to /sys: bus/pci/devices/<bdf> is a link to the function's
// directory under devices/, which is nested in those of the bridges between it and its root complex.
func (n *Node) Sysfs() fs.ReadLinkFS {
	return livePCI{newTree(n.spec.sysfs()), n}
}

func (s *spec) sysfs() map[string]treeFile {
	files := map[string]treeFile{}
	for i := range s.GPUs {
		s.addPCI(files, &s.GPUs[i].pciEntry)
		addFile(files, deviceDir(&s.GPUs[i].pciEntry)+"/boot_vga", "0\n")
		s.addDRM(files, i)
	}
	for i := range s.NVSwitches {
		s.addPCI(files, &s.NVSwitches[i])
	}
	for i := range s.Others {
		s.addPCI(files, &s.Others[i])
	}
	s.addNUMA(files)
	s.addModule(files)
	return files
}

// deviceDir is the directory of a PCI function.
func deviceDir(e *pciEntry) string { return "devices/" + e.Path }

func addFile(files map[string]treeFile, name, data string) {
	files[name] = treeFile{data: []byte(data)}
}

// addPCI adds a PCI function and the bridges above it.
func (s *spec) addPCI(files map[string]treeFile, e *pciEntry) {
	parts := strings.Split(e.Path, "/")
	for depth := 2; depth < len(parts); depth++ {
		bridge := pciEntry{Path: path.Join(parts[:depth]...), NUMA: e.NUMA, Vendor: "0x1000", Device: "0xc030", Class: "0x060400"}
		s.addFunction(files, &bridge)
	}
	s.addFunction(files, e)
	s.addEndpoint(files, e)
}

func (s *spec) addFunction(files map[string]treeFile, e *pciEntry) {
	dir := deviceDir(e)
	addFile(files, dir+"/vendor", e.Vendor+"\n")
	addFile(files, dir+"/device", e.Device+"\n")
	addFile(files, dir+"/class", e.Class+"\n")
	addFile(files, dir+"/numa_node", fmt.Sprintf("%d\n", e.NUMA))
	addFile(files, dir+"/local_cpulist", cpuList(s.cpusOf(e.NUMA))+"\n")
	addFile(files, dir+"/uevent", "PCI_SLOT_NAME="+e.bdf()+"\n")
	files["bus/pci/devices/"+e.bdf()] = treeFile{target: "../../../" + dir}
}

// addEndpoint adds the files that programs read for functions other than bridges: go-nvlib's nvpci, and with it mig-parted and
// NVIDIA's DRA driver, fails if an NVIDIA function has no resource file.
func (s *spec) addEndpoint(files map[string]treeFile, e *pciEntry) {
	dir := deviceDir(e)
	board := s.boardAt(e)
	var subsystem uint32
	if board != nil {
		subsystem = parseHex(board.PCISubsystemID)
	}
	addFile(files, dir+"/subsystem_vendor", fmt.Sprintf("0x%04x\n", subsystem&0xffff))
	addFile(files, dir+"/subsystem_device", fmt.Sprintf("0x%04x\n", subsystem>>16))
	addFile(files, dir+"/revision", "0xa1\n")
	addFile(files, dir+"/resource", resources(board))
	files[dir+"/config"] = treeFile{data: configSpace(e, subsystem)}
	if driver := driverOf(e); driver != "" {
		// The tree has no empty directories.
		addFile(files, "bus/pci/drivers/"+driver+"/new_id", "")
		files["bus/pci/drivers/"+driver+"/"+e.bdf()] = treeFile{target: "../../../../" + dir}
		files[dir+"/driver"] = treeFile{target: strings.Repeat("../", strings.Count(dir, "/")+1) + "bus/pci/drivers/" + driver}
	}
}

// boardAt is the board of a function that is a GPU, or nil.
func (s *spec) boardAt(e *pciEntry) *Board {
	for i := range s.GPUs {
		if &s.GPUs[i].pciEntry == e {
			return &s.Boards[s.GPUs[i].Board]
		}
	}
	return nil
}

// driverOf is the kernel driver that a function is bound to.
func driverOf(e *pciEntry) string {
	switch {
	case e.Vendor == "0x10de" && strings.HasPrefix(e.Class, "0x0680"):
		return "nvidia-nvswitch"
	case e.Vendor == "0x10de":
		return "nvidia"
	case e.Vendor == "0x15b3":
		return "mlx5_core"
	default:
		return ""
	}
}

// resources is the file of that name: a line for each of 13 regions. A GPU has its registers, its memory (BAR1, 64 bits
// wide) and BAR3.
func resources(board *Board) string {
	const (
		lines       = 13
		memory32    = 0x40200
		prefetch64  = 0x14220c
		registers   = 16 << 20
		bar3        = 32 << 20
		bar1Address = 0x200000000000
	)
	type region struct{ start, size, flags uint64 }
	regions := [lines]region{0: {0xe0000000, registers, memory32}}
	if board != nil {
		bar1 := board.BAR1MiB << 20
		regions[1] = region{bar1Address, bar1, prefetch64}
		regions[3] = region{bar1Address + bar1, bar3, prefetch64}
	}
	var b strings.Builder
	for _, r := range regions {
		end := r.start
		if r.size > 0 {
			end += r.size - 1
		}
		fmt.Fprintf(&b, "0x%016x 0x%016x 0x%016x\n", r.start, end, r.flags)
	}
	return b.String()
}

// configSpace is the beginning of a function's configuration space: its IDs, and one capability, PCI Express.
func configSpace(e *pciEntry, subsystem uint32) []byte {
	const (
		capabilityList = 0x10 // in the status register
		express        = 0x10
		expressAt      = 0x60
	)
	c := make([]byte, 256)
	binary.LittleEndian.PutUint16(c[0x00:], uint16(parseHex(e.Vendor)))
	binary.LittleEndian.PutUint16(c[0x02:], uint16(parseHex(e.Device)))
	c[0x04], c[0x06] = 0x06, capabilityList
	binary.LittleEndian.PutUint32(c[0x08:], parseHex(e.Class)<<8|0xa1)
	binary.LittleEndian.PutUint32(c[0x2c:], subsystem)
	c[0x34] = expressAt
	c[expressAt], c[expressAt+2] = express, 0x02
	return c
}
