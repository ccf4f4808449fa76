// SPDX-License-Identifier: Apache-2.0

package sim

import "fmt"

// Served is a program that uses a GPU through an MPS server. NVML lists the server, which alone has a context on the GPU,
// and so does the state of the GPU: only the journal knows of the program.
type Served struct {
	PID  int // as the server sees it
	Name string
	// GPUInstance that the server has, -1 for the whole GPU.
	GPUInstance int
}

// BeginServed writes to the node's journal that a server serves a program from now on.
func (cs *Clients) BeginServed(index int, p Served) error {
	return cs.noteServed(JournalServed, index, p)
}

// EndServed writes to the node's journal that a server serves a program no more.
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
