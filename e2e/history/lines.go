// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// maxLine bounds what a reader takes for one event.
const maxLine = 1 << 20

// line is an event in a file.
type line struct {
	At   time.Duration   `json:"at"`
	Wall time.Time       `json:"wall"`
	Kind Kind            `json:"kind"`
	Fact json.RawMessage `json:"fact"`
}

// MarshalJSON encodes the event as a line of a file.
func (e Event) MarshalJSON() ([]byte, error) {
	fact, err := json.Marshal(e.Fact)
	if err != nil {
		return nil, err
	}
	return json.Marshal(line{e.At, e.Wall, e.Fact.Kind(), fact})
}

// UnmarshalJSON decodes a line of a file. Fields and kinds that are unknown are errors: a checker that does not know what it
// reads proves nothing.
func (e *Event) UnmarshalJSON(data []byte) error {
	var l line
	if err := strictly(data, &l); err != nil {
		return err
	}
	decode, ok := decoders[l.Kind]
	if !ok {
		return fmt.Errorf("an event of an unknown kind %q", l.Kind)
	}
	fact, err := decode(l.Fact)
	if err != nil {
		return fmt.Errorf("%s: %w", l.Kind, err)
	}
	*e = Event{At: l.At, Wall: l.Wall, Fact: fact}
	return nil
}

var decoders = map[Kind]func([]byte) (Fact, error){
	KindStart:      decodeAs[Start],
	KindCounters:   decodeAs[Counters],
	KindDevice:     decodeAs[Device],
	KindWithdrawn:  decodeAs[Withdrawn],
	KindClaim:      decodeAs[Claim],
	KindCall:       decodeAs[Call],
	KindReturn:     decodeAs[Return],
	KindHardware:   decodeAs[Hardware],
	KindContainer:  decodeAs[Container],
	KindPod:        decodeAs[Pod],
	KindFault:      decodeAs[Fault],
	KindGap:        decodeAs[Gap],
	KindScheduling: decodeAs[Scheduling],
}

func decodeAs[T Fact](data []byte) (Fact, error) {
	var fact T
	err := strictly(data, &fact)
	return fact, err
}

// strictly decodes one document without unknown fields.
func strictly(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if decoder.More() {
		return errors.New("more than one document")
	}
	return nil
}

// Read reads the file of a recorder. Of a recorder that was killed, the last line may be incomplete, and is left out.
func Read(path string) (History, error) {
	f, err := os.Open(path)
	if err != nil {
		return History{}, fmt.Errorf("read a history: %w", err)
	}
	defer f.Close()
	h, err := Decode(f)
	if err != nil {
		return History{}, fmt.Errorf("read history %s: %w", path, err)
	}
	return h, nil
}

// Decode reads a history, see Read.
func Decode(r io.Reader) (History, error) {
	lines := bufio.NewReaderSize(r, maxLine)
	var events []Event
	for n := 1; ; n++ {
		data, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return History{}, fmt.Errorf("line %d: longer than %d bytes", n, maxLine)
		case errors.Is(err, io.EOF): // what has no end was not written whole
			return checkStart(events)
		case err != nil:
			return History{}, fmt.Errorf("line %d: %w", n, err)
		}
		var e Event
		if err := json.Unmarshal(data, &e); err != nil {
			return History{}, fmt.Errorf("line %d: %w", n, err)
		}
		events = append(events, e)
	}
}

func checkStart(events []Event) (History, error) {
	if len(events) == 0 {
		return History{}, errors.New("it has no events")
	}
	start, ok := events[0].Fact.(Start)
	if !ok {
		return History{}, fmt.Errorf("line 1: a history begins with an event %q, and this is %q", KindStart, events[0].Fact.Kind())
	}
	if start.Format != Format {
		return History{}, fmt.Errorf("line 1: format %d, and this program reads %d", start.Format, Format)
	}
	return New(events...), nil
}
