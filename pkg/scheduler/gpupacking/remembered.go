// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// remembered is something of pods, by UID. It is bounded: of what is forgotten, the worst is another Event or one more attempt.
type remembered[V any] struct {
	mutex   sync.Mutex
	pods    map[types.UID]V
	earlier map[types.UID]V
}

// maxRemembered bounds each of the two halves.
const maxRemembered = 10_000

// put reports whether there was anything of the pod before.
func (r *remembered[V]) put(uid types.UID, value V) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	found := r.drop(uid)
	if r.pods == nil || len(r.pods) >= maxRemembered {
		r.pods, r.earlier = map[types.UID]V{}, r.pods
	}
	r.pods[uid] = value
	return found
}

func (r *remembered[V]) get(uid types.UID) (V, bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if value, ok := r.pods[uid]; ok {
		return value, true
	}
	value, ok := r.earlier[uid]
	return value, ok
}

// remove reports whether there was anything of the pod.
func (r *remembered[V]) remove(uid types.UID) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.drop(uid)
}

func (r *remembered[V]) drop(uid types.UID) bool {
	_, now := r.pods[uid]
	_, before := r.earlier[uid]
	delete(r.pods, uid)
	delete(r.earlier, uid)
	return now || before
}

// all is what there is, in no order.
func (r *remembered[V]) all() (values []V) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, pods := range []map[types.UID]V{r.pods, r.earlier} {
		for _, v := range pods {
			values = append(values, v)
		}
	}
	return values
}
