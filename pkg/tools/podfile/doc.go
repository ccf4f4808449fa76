// SPDX-License-Identifier: Apache-2.0

// Package podfile finds the pods that objects of a file stand for: Pods, and the pod templates of any other kind.
package podfile
