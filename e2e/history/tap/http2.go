// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	frameHeader   = 9
	messageHeader = 5
	// maxMessage bounds what is kept of one message; the kubelet takes no longer ones.
	maxMessage = 16 << 20
)

// direction reads one direction of an HTTP/2 connection as its bytes pass by.
type direction struct {
	// preface is what is left of the client's, which is no frame.
	preface int
	bytes   bytes.Buffer
	framer  *http2.Framer
	headers *hpack.Decoder
	// block are the headers that have come so far, and ends says that nothing follows them.
	block []hpack.HeaderField
	ends  bool

	onHeaders func(stream uint32, fields []hpack.HeaderField, ends bool)
	onData    func(stream uint32, data []byte, ends bool)
	onReset   func(stream uint32)
}

func newDirection(fromClient bool) *direction {
	d := &direction{}
	if fromClient {
		d.preface = len(http2.ClientPreface)
	}
	d.framer = http2.NewFramer(nil, &d.bytes)
	d.framer.SetMaxReadFrameSize(1<<24 - 1)
	d.headers = hpack.NewDecoder(4096, func(f hpack.HeaderField) { d.block = append(d.block, f) })
	return d
}

// feed reads what has passed by.
func (d *direction) feed(data []byte) error {
	skip := min(d.preface, len(data))
	d.preface -= skip
	d.bytes.Write(data[skip:])
	for {
		have := d.bytes.Bytes()
		if len(have) < frameHeader {
			return nil
		}
		if length := int(have[0])<<16 | int(have[1])<<8 | int(have[2]); len(have) < frameHeader+length {
			return nil
		}
		frame, err := d.framer.ReadFrame()
		if err != nil {
			return fmt.Errorf("read an HTTP/2 frame: %w", err)
		}
		if err := d.handle(frame); err != nil {
			return err
		}
	}
}

func (d *direction) handle(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.HeadersFrame:
		d.ends = f.StreamEnded()
		return d.fragment(f.StreamID, f.HeaderBlockFragment(), f.HeadersEnded())
	case *http2.ContinuationFrame:
		return d.fragment(f.StreamID, f.HeaderBlockFragment(), f.HeadersEnded())
	case *http2.DataFrame:
		d.onData(f.StreamID, f.Data(), f.StreamEnded())
	case *http2.RSTStreamFrame:
		d.onReset(f.StreamID)
	}
	return nil
}

func (d *direction) fragment(stream uint32, data []byte, complete bool) error {
	if _, err := d.headers.Write(data); err != nil {
		return fmt.Errorf("read HTTP/2 headers: %w", err)
	}
	if !complete {
		return nil
	}
	if err := d.headers.Close(); err != nil {
		return fmt.Errorf("read HTTP/2 headers: %w", err)
	}
	fields := d.block
	d.block = nil
	d.onHeaders(stream, fields, d.ends)
	return nil
}

// message is the first gRPC message of a stream; nil while it is not complete.
func message(stream []byte) []byte {
	if len(stream) < messageHeader {
		return nil
	}
	length := int(binary.BigEndian.Uint32(stream[1:messageHeader]))
	if len(stream) < messageHeader+length {
		return nil
	}
	return stream[messageHeader : messageHeader+length]
}
