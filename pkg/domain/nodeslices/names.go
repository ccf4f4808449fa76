// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// maxDriverName is the limit of the resource API (ResourceSliceSpec.Driver).
const maxDriverName = 63

// CheckDriverName validates a driver's name. Errors name the flag.
func CheckDriverName(name string) error {
	msgs := validation.IsDNS1123Subdomain(name)
	if len(name) > maxDriverName {
		msgs = append(msgs, fmt.Sprintf("it has %d characters, more than %d", len(name), maxDriverName))
	}
	if len(msgs) == 0 {
		return nil
	}
	return fmt.Errorf("--driver-name %q is not a DNS name: %s", name, strings.Join(msgs, "; "))
}

// CheckNodeName validates a node's name. Errors name the flag.
func CheckNodeName(name string) error {
	if name == "" {
		return errors.New("--node-name is not set: give the Node object's name, in a pod from spec.nodeName")
	}
	if msgs := validation.IsDNS1123Subdomain(name); len(msgs) > 0 {
		return fmt.Errorf("--node-name %q cannot be a Node's name: %s", name, strings.Join(msgs, "; "))
	}
	return nil
}
