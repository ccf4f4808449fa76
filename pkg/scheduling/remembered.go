// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// remembered are pods, by UID. It is bounded: of what is forgotten, the worst is another Event or one more narrowed attempt.
type remembered struct {
	mutex   sync.Mutex
	pods    map[types.UID]int
	earlier map[types.UID]int
}

// maxRemembered bounds each of the two halves.
const maxRemembered = 10_000

// add is how many times the pod was added.
func (r *remembered) add(uid types.UID) int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	n := r.pods[uid] + r.earlier[uid] + 1
	delete(r.earlier, uid)
	if r.pods == nil || len(r.pods) >= maxRemembered {
		r.pods, r.earlier = map[types.UID]int{}, r.pods
	}
	r.pods[uid] = n
	return n
}

// remove reports whether the pod was there.
func (r *remembered) remove(uid types.UID) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	found := r.pods[uid]+r.earlier[uid] > 0
	delete(r.pods, uid)
	delete(r.earlier, uid)
	return found
}
