package sim

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// Sysfs is what /sys of the node says of PCI and of NUMA nodes, with paths relative to /sys: bus/pci/devices/<bdf> is a
// link to the function's folder under devices/, which lies in those of the bridges between it and its root complex.
func (n *Node) Sysfs() fs.ReadLinkFS {
	return newTree(n.spec.sysfs())
}

// sysfs makes the files.
func (s *spec) sysfs() map[string]treeFile {
	files := map[string]treeFile{}
	for i := range s.GPUs {
		s.addPCI(files, &s.GPUs[i].pciEntry)
		addFile(files, deviceDir(&s.GPUs[i].pciEntry)+"/boot_vga", "0\n")
	}
	for i := range s.NVSwitches {
		s.addPCI(files, &s.NVSwitches[i])
	}
	for i := range s.Others {
		s.addPCI(files, &s.Others[i])
	}
	s.addNUMA(files)
	return files
}

// deviceDir is the folder of a PCI function.
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
}

// addFunction adds the files of one PCI function.
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
