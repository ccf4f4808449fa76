// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// smiFields are what nvidia-smi is asked for; every driver with MIG knows them.
var smiFields = []string{"uuid", "pci.bus_id", "memory.total", "memory.reserved", "compute_mode", "mig.mode.current"}

// smiGPU is a GPU as nvidia-smi has it. Memory is in MiB, -1 where nvidia-smi does not know it.
type smiGPU struct {
	uuid            string
	pci             gpu.PCIAddress
	total, reserved int64
	computeMode     string
	mig             string
}

func smiQuery() []string {
	return []string{"--query-gpu=" + strings.Join(smiFields, ","), "--format=csv,noheader,nounits"}
}

// parseSMI reads what nvidia-smi prints for smiQuery.
func parseSMI(output []byte) ([]smiGPU, error) {
	lines := csv.NewReader(bytes.NewReader(output))
	lines.TrimLeadingSpace = true
	lines.FieldsPerRecord = len(smiFields)
	rows, err := lines.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read what nvidia-smi printed: %w", err)
	}
	gpus := make([]smiGPU, 0, len(rows))
	for _, row := range rows {
		g := smiGPU{uuid: row[0], total: mebibytes(row[2]), reserved: mebibytes(row[3]), computeMode: row[4], mig: row[5]}
		if g.pci, err = gpu.ParsePCIAddress(row[1]); err != nil {
			return nil, fmt.Errorf("read what nvidia-smi printed: %w", err)
		}
		gpus = append(gpus, g)
	}
	return gpus, nil
}

// mebibytes reads an amount; nvidia-smi writes [N/A] or [Not Supported] for what it does not know.
func mebibytes(s string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// rounding is by how many MiB two reports of the same amount may differ: nvidia-smi rounds each number it prints.
const rounding = 2

// compareSMI lists in what nvidia-smi and NVML report different things.
func compareSMI(smi []smiGPU, boards []board) []string {
	var list []string
	if len(smi) != len(boards) {
		list = append(list, fmt.Sprintf("nvidia-smi has %d GPUs, NVML %d", len(smi), len(boards)))
	}
	for i := range boards {
		b := &boards[i]
		at := slices.IndexFunc(smi, func(s smiGPU) bool { return s.uuid == b.uuid })
		if at < 0 {
			list = append(list, fmt.Sprintf("nvidia-smi has no %s", b.uuid))
			continue
		}
		s := smi[at]
		if s.pci != b.pci {
			list = append(list, fmt.Sprintf("%s is at %s for nvidia-smi and at %s for NVML", b.uuid, s.pci, b.pci))
		}
		if s.total >= 0 && !near(s.total, b.total>>20, rounding) {
			list = append(list, fmt.Sprintf("%s has %d MiB for nvidia-smi and %d MiB for NVML", b.uuid, s.total, b.total>>20))
		}
	}
	return list
}

func near(a, b, within int64) bool { return max(a-b, b-a) <= within }
