// SPDX-License-Identifier: Apache-2.0

//go:build nvmlsim

package main

/*
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include "sim.h"
*/
import "C"

import (
	"unsafe"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// An object is the subject of a call: it is looked up in the node when the call starts.
type object[O any] func(*sim.Node) (O, error)

// on runs a call on an object.
func on[O any](find object[O], call func(O) error) C.nvmlReturn_t {
	return onNode(func(n *sim.Node) error {
		o, err := find(n)
		if err != nil {
			return err
		}
		return call(o)
	})
}

// onPair runs a call on two objects of a kind.
func onPair[O any](first, second object[O], call func(a, b O) error) C.nvmlReturn_t {
	return onNode(func(n *sim.Node) error {
		a, err := first(n)
		if err != nil {
			return err
		}
		b, err := second(n)
		if err != nil {
			return err
		}
		return call(a, b)
	})
}

// node is the object of calls that name none.
func node(n *sim.Node) (*sim.Node, error) { return n, nil }

// answer stores the result of a call on an object.
func answer[O, G, T any](find object[O], get func(O) (G, error), to *T, convert func(G) T) C.nvmlReturn_t {
	return on(find, func(o O) error {
		v, err := get(o)
		return put(to, v, err, convert)
	})
}

// number is an integer of C or Go.
type number interface {
	~int | ~int32 | ~uint32 | ~uint64
}

func convert[T, G number](v G) T { return T(v) }

// answerNumber stores the number that a call returns.
func answerNumber[O any, G, T number](find object[O], get func(O) (G, error), to *T) C.nvmlReturn_t {
	return answer(find, get, to, convert[T, G])
}

// answerPair stores the two values that a call returns.
func answerPair[O, G, T any](find object[O], get func(O) (G, G, error), first, second *T, convert func(G) T) C.nvmlReturn_t {
	return on(find, func(o O) error {
		a, b, err := get(o)
		if err != nil {
			return err
		}
		if first == nil || second == nil {
			return code(sim.CodeInvalidArgument)
		}
		*first, *second = convert(a), convert(b)
		return nil
	})
}

// answerString stores the string that a call returns.
func answerString[O any](find object[O], get func(O) (string, error), to *C.char, length C.uint) C.nvmlReturn_t {
	return on(find, func(o O) error {
		s, err := get(o)
		if err != nil {
			return err
		}
		return putString(to, length, s)
	})
}

// put stores a value where C wants it, if the call did not fail.
func put[T, G any](to *T, v G, err error, convert func(G) T) error {
	if err != nil {
		return err
	}
	if to == nil {
		return code(sim.CodeInvalidArgument)
	}
	*to = convert(v)
	return nil
}

// putString copies a string and its end into a buffer of C.
func putString(to *C.char, length C.uint, s string) error {
	if to == nil {
		return code(sim.CodeInvalidArgument)
	}
	buf := unsafe.Slice((*byte)(unsafe.Pointer(to)), int(length))
	if len(s)+1 > len(buf) {
		return code(sim.CodeInsufficientSize)
	}
	buf[copy(buf, s)] = 0
	return nil
}

// putChars fills an array of a C struct with a string, cut to fit.
func putChars(to []C.char, s string) {
	for i := range to {
		to[i] = 0
		if i < len(s) && i < len(to)-1 {
			to[i] = C.char(s[i])
		}
	}
}

// putSlice fills an array. Where sized, count gives on entry how many fit, and NVML returns how many there are if they
// do not; where not, the caller has made room for all there can be. A null array asks for the count alone.
func putSlice[T, G any](to *T, count *C.uint, values []G, err error, sized bool, convert func(G) T) error {
	if err != nil {
		return err
	}
	if count == nil {
		return code(sim.CodeInvalidArgument)
	}
	room := int(*count)
	*count = C.uint(len(values))
	switch {
	case to == nil && (!sized || room == 0):
		return nil
	case to == nil:
		return code(sim.CodeInvalidArgument)
	case sized && room < len(values):
		return code(sim.CodeInsufficientSize)
	}
	for i, v := range values {
		unsafe.Slice(to, len(values))[i] = convert(v)
	}
	return nil
}

// enable is a switch as NVML has it.
func enable(on bool) C.nvmlEnableState_t {
	if on {
		return C.NVML_FEATURE_ENABLED
	}
	return C.NVML_FEATURE_DISABLED
}
