// SPDX-License-Identifier: Apache-2.0

package sim

import "fmt"

// Served is a program that uses a GPU through an MPS server. NVML and the GPU's state list only the server, which alone has a
// context on the GPU; the program is only in the journal.
type Served struct {
	PID  int // as the server sees it
	Name string
	// GPUInstance that the server has, -1 for the whole GPU.
	GPUInstance int
}

// BeginServed records in the node's journal that a server has begun to serve a program.
func (cs *Clients) BeginServed(index int, p Served) error {
	return cs.noteServed(JournalServed, index, p)
}

// EndServed records in the node's journal that a server no longer serves a program.
func (cs *Clients) EndServed(index int, p Served) error {
	return cs.noteServed(JournalServedEnded, index, p)
}

func (cs *Clients) noteServed(change string, index int, p Served) error {
	if err := cs.checkIndex(index); err != nil {
		return err
	}
	if cs.journal == nil {
		return nil
	}
	e := JournalEntry{Change: change, GPU: deviceNames(cs.spec)[index], PID: p.PID, Name: p.Name}
	if p.GPUInstance >= 0 {
		st, err := cs.gpus[index].load()
		if err != nil {
			return err
		}
		gi := st.findInstance(p.GPUInstance)
		if gi == nil {
			return fmt.Errorf("write the journal: GPU %d has no GPU instance %d", index, p.GPUInstance)
		}
		e.Profile, e.Start, e.Serial = gi.Profile, gi.Start, gi.Serial
	}
	return cs.journal.append([]JournalEntry{e})
}
