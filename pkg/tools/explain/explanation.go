// SPDX-License-Identifier: Apache-2.0

package explain

import "time"

// State is the answer in one word.
type State string

// The states.
const (
	// Fits means that the scheduler's allocator finds devices on a node.
	Fits State = "fits"
	// Refused means that it finds none.
	Refused State = "refused"
	// Allocated means that all claims have their devices.
	Allocated State = "allocated"
	// Waits means that devices are free or allocated, and yet the pod waits: the causes say for what.
	Waits State = "waits"
	// Scheduled means that the pod has a node, so that no device is looked for any more.
	Scheduled State = "scheduled"
	// NoClaims means that no devices are asked for.
	NoClaims State = "noClaims"
)

// Outlook says of what is refused whether it can be had later.
type Outlook string

// The outlooks; empty where it is not known.
const (
	// NotNow means that a node of the cluster could serve it, once others leave devices, or a taint or a cordon is removed.
	NotNow Outlook = "notNow"
	// Never means that no node of the cluster could, as nodes and request are, even if all devices were free.
	Never Outlook = "never"
)

// Explanation says where claims fit, and what refuses them elsewhere. Its JSON is an interface: fields and values may be
// added, never renamed.
type Explanation struct {
	// Subject is what was asked about, such as "Pod team/trainer".
	Subject string `json:"subject"`
	State   State  `json:"state"`
	// Outlook is for what is refused.
	Outlook Outlook `json:"outlook,omitempty"`
	// Node is that of a pod that is scheduled.
	Node string `json:"node,omitempty"`
	// Requests are those of the claims.
	Requests []Ask `json:"requests,omitempty"`
	// Devices are those of claims that are allocated.
	Devices []Holding `json:"devices,omitempty"`
	// Limits are what the nodes never have, even if all devices were free.
	Limits []Cause `json:"limits,omitempty"`
	// Causes are those that do not depend on the node.
	Causes []Cause `json:"causes,omitempty"`
	// Groups are nodes with the same causes, those first where the least is missing.
	Groups []Group `json:"groups,omitempty"`
	// Alternatives would fit now in place of the refused request.
	Alternatives []Alternative `json:"alternatives,omitempty"`
	// Eviction is for a pod that fits no node.
	Eviction *Eviction `json:"eviction,omitempty"`
	Notes    []string  `json:"notes,omitempty"`

	over bool // the pod has ended or is being deleted
}

// Ask is a request of a claim, or one of its alternatives.
type Ask struct {
	// Claim is "namespace/name".
	Claim string `json:"claim"`
	// Request is the name of the request, of an alternative "request/alternative".
	Request string `json:"request"`
	Class   string `json:"class"`
	// Count of devices; 0 for all that match.
	Count int64 `json:"count"`
	// Capacity are the amounts that it asks for, such as "memory 20Gi".
	Capacity []string `json:"capacity,omitempty"`
}

// Group is nodes with the same causes.
type Group struct {
	Nodes []string `json:"nodes"`
	// Fits is set where the claims fit; there are no causes then.
	Fits   bool    `json:"fits,omitempty"`
	Causes []Cause `json:"causes,omitempty"`
}

// Kind of a cause.
type Kind string

// The kinds of causes. Those of devices are in order of the check.
const (
	// ClaimMissing is a claim that does not exist.
	ClaimMissing Kind = "claimMissing"
	// TemplateMissing is a claim that cannot be created, as its template does not exist.
	TemplateMissing Kind = "templateMissing"
	// NotCreated is a claim that was not created from its template yet.
	NotCreated Kind = "claimNotCreated"
	// ClaimBusy is a claim that no further pod can use.
	ClaimBusy Kind = "claimBusy"
	// Gated is a pod with scheduling gates.
	Gated Kind = "schedulingGates"
	// NoScheduler is a pod that no scheduler has looked at.
	NoScheduler Kind = "noScheduler"
	// PodOver is a pod that no scheduler looks at any more: it has ended, or is being deleted.
	PodOver Kind = "podOver"
	// SchedulerIgnores is a scheduler that counts no counters or shares, so that it finds none of the devices that fit.
	SchedulerIgnores Kind = "schedulerIgnores"
	// SchedulerSays is the scheduler's own reason, where it is not devices.
	SchedulerSays Kind = "schedulerSays"
	// Quota is a ResourceQuota that leaves too little for a claim, or for the pod.
	Quota Kind = "quota"
	// NotAllocated is a claim without devices, of a pod that has a node, or is created with one.
	NotAllocated Kind = "notAllocated"
	// UnknownAttribute and UnknownCapacity are names that no device of the cluster has.
	UnknownAttribute Kind = "unknownAttribute"
	UnknownCapacity  Kind = "unknownCapacity"
	// ClassMissing is a DeviceClass that does not exist.
	ClassMissing Kind = "classMissing"
	// Invalid is an error of the allocator, such as a selector that fails on a device.
	Invalid Kind = "invalid"

	// Elsewhere is a claim that is allocated devices of another node.
	Elsewhere Kind = "allocatedElsewhere"
	// NodeAffinity is a node that the pod does not select.
	NodeAffinity Kind = "nodeAffinity"
	// Cordoned is a node that takes no new pods.
	Cordoned Kind = "unschedulable"
	// NodeTaint is a taint of a node that the pod does not tolerate.
	NodeTaint Kind = "nodeTaint"
	// DevicePlugin is a node whose device plugin serves the pod's extended resource: the scheduler counts it there.
	DevicePlugin Kind = "devicePlugin"
	// NotPublishing is a node without devices.
	NotPublishing Kind = "notPublishing"
	// Incomplete is a pool with missing slices.
	Incomplete Kind = "incompletePool"
	// InvalidPool is a pool from which the scheduler allocates nothing.
	InvalidPool Kind = "invalidPool"

	// ClassSelector is a node without a device of the class.
	ClassSelector Kind = "classSelector"
	// Selector is a selector of the request that devices of the class do not match.
	Selector Kind = "selector"
	// TooSmall is a capacity that a device does not have, or has too little of.
	TooSmall Kind = "capacityTooSmall"
	// DeviceTaint is a taint of devices that the request does not tolerate.
	DeviceTaint Kind = "deviceTaint"
	// InUse is a device that is allocated.
	InUse Kind = "allocated"
	// Overdrawn is a pool of which claims have more than there is: from it, the scheduler allocates no device that consumes counters.
	Overdrawn Kind = "overdrawn"
	// Counter is a counter that allocated devices have used up.
	Counter Kind = "counter"
	// Share is a shared device that claims have used up.
	Share Kind = "shareCapacity"

	// Count is fewer devices than are asked for.
	Count Kind = "count"
	// Constraint is a constraint that no choice of devices meets.
	Constraint Kind = "constraint"
	// Together are requests that fit one by one, but not all at once.
	Together Kind = "together"
	// Timeout is a search that took too long.
	Timeout Kind = "timeout"
	// NotCounted are devices that nodes do not offer, as the cluster does not count them.
	NotCounted Kind = "notCounted"
	// NoNode are the pod's selectors and tolerations, which leave it no node.
	NoNode Kind = "noNode"

	// PreemptsNever is a pod for which nobody may be evicted.
	PreemptsNever Kind = "preemptionPolicyNever"
	// PodGroupMember is a pod that is scheduled with others, for which nobody is evicted.
	PodGroupMember Kind = "podGroup"
	// NotLower are pods whose priority is not below that of the pod.
	NotLower Kind = "priorityNotLower"
	// SharedClaim is a claim that pods of a lower priority share with one that may not be evicted.
	SharedClaim Kind = "claimShared"
	// UnusedClaim is a claim with devices that no pod uses.
	UnusedClaim Kind = "claimUnused"
	// ForeignClaim is a claim that other objects than pods use.
	ForeignClaim Kind = "claimNotOfPods"
	// ElsewhereClaim is a claim of a pod that is not on the node of its devices, or not yet.
	ElsewhereClaim Kind = "claimOfPodElsewhere"
	// StuckPod is a pod that should have ended.
	StuckPod Kind = "podStuck"
	// NotEnough are devices that do not suffice even if nobody has them.
	NotEnough Kind = "devicesNotEnough"
	// EvictionUnknown is a prediction that cannot be made.
	EvictionUnknown Kind = "evictionUnknown"
)

// Cause is one thing that refuses a claim.
type Cause struct {
	Kind Kind `json:"kind"`
	// Message says in one sentence what is wrong, Remedy what to do about it.
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
	// Claim is "namespace/name", Request as in Ask; empty where it is about all.
	Claim   string `json:"claim,omitempty"`
	Request string `json:"request,omitempty"`
	// Devices is how many devices of the group's nodes it refuses.
	Devices  int        `json:"devices,omitempty"`
	Selector *Mismatch  `json:"selector,omitempty"`
	Taint    *Taint     `json:"taint,omitempty"`
	Missing  []Shortage `json:"missing,omitempty"`
	// Claims are those that have the devices, counters or amounts.
	Claims []Use `json:"claims,omitempty"`
	// Suggestions are names that a misspelled one may be meant for.
	Suggestions []string `json:"suggestions,omitempty"`

	name       string // that Message is about: a class, an object, an error
	kinds      string // of the node's devices
	most, want int64
	least      int64 // of priorities, of which most is the highest
	// limit says of what is missing everywhere, even if all devices were free, which nodes these are: "no node".
	limit string
	// where says where name is written.
	where  string
	age    time.Duration
	remedy string // of a limit, or of what a scheduler says
	// known are names that name could have been meant for, or that are used in its place.
	known []string
	admin bool // access, which takes nothing
}

// Mismatch is a selector that refuses devices.
type Mismatch struct {
	// Of is "class NAME" or "request NAME".
	Of         string `json:"of"`
	Expression string `json:"expression"`
	// Part is the term of the expression that is false.
	Part string `json:"part,omitempty"`
	// Attributes are those that Part names, with the values of the refused devices.
	Attributes []Values `json:"attributes,omitempty"`
}

// Values are the distinct values of an attribute or capacity.
type Values struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

// Taint is a taint of a node or of devices.
type Taint struct {
	Key    string     `json:"key"`
	Value  string     `json:"value,omitempty"`
	Effect string     `json:"effect"`
	Since  *time.Time `json:"since,omitempty"`
}

// Shortage is an amount that is not available.
type Shortage struct {
	// Name of the counter or capacity.
	Name string `json:"name"`
	Want string `json:"want,omitempty"`
	// Most is the most that one device has left.
	Most string `json:"most,omitempty"`

	most int64
}

// Use is a claim that is allocated devices.
type Use struct {
	// Claim is "namespace/name".
	Claim string   `json:"claim"`
	Pods  []string `json:"pods,omitempty"`
	// Ending is set once the claim is being deleted.
	Ending bool `json:"ending,omitempty"`
	// Since is when it was allocated; nil where that is not known.
	Since *time.Time `json:"since,omitempty"`
}

// Alternative is a request that would fit now.
type Alternative struct {
	Class string `json:"class"`
	// Count of devices that one claim can get.
	Count int64 `json:"count"`
	// Capacity is the most that one share can get.
	Capacity []string `json:"capacity,omitempty"`
	// WithoutSelectors is set for the class of the request without the request's selectors.
	WithoutSelectors bool `json:"withoutSelectors,omitempty"`
	// Nodes where it fits.
	Nodes []string `json:"nodes"`
}
