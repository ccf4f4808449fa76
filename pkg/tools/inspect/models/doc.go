// SPDX-License-Identifier: Apache-2.0

// Package models holds the inventories of known node models, such as hgx-h100, so that a node can be looked at that is not
// there. They are captured from the simulator by hack/gen-nodemodels; the program does not contain the simulator itself.
package models
