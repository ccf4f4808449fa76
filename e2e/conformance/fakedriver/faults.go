// SPDX-License-Identifier: Apache-2.0

package fakedriver

// Fault is one way to be wrong.
type Fault string

// Faults of registration.
const (
	RegistersOtherName     Fault = "registers another name"
	RegistersOtherType     Fault = "registers another type"
	RegistersUnserved      Fault = "registers a service that it does not serve"
	RegistersUnknown       Fault = "registers only a service that kubelets do not know"
	EndpointRelative       Fault = "registers a relative endpoint"
	EndpointMissing        Fault = "registers an endpoint that does not exist"
	EndpointFile           Fault = "registers an endpoint that is a file"
	RegistersDifferently   Fault = "answers the second GetInfo differently"
	RefusesSecondRegister  Fault = "fails NotifyRegistrationStatus the second time"
	PublishesNothing       Fault = "publishes no slices"
	CountsSlicesWrong      Fault = "gives a wrong resourceSliceCount"
	KeepsStaleSlice        Fault = "keeps a slice of an older generation"
	PublishesInvalid       Fault = "publishes what the API server refuses"
	RepeatsDevice          Fault = "has a device name in two slices"
	RepeatsCounterSet      Fault = "has a counter set name in two slices"
	ConsumesUnknownSet     Fault = "consumes a counter that the pool lacks"
	ConsumesMore           Fault = "consumes more than a counter has"
	CountersBelowAllocated Fault = "has smaller counters than allocated devices consume"
	OnOtherNode            Fault = "publishes a device that its node cannot use"
)

// Faults of Prepare.
const (
	OmitsEntry          Fault = "omits the claim in the answer"
	GivesOtherDevice    Fault = "gives a device that is not allocated"
	GivesOtherRequest   Fault = "names a request that the claim lacks"
	GivesDeviceTwice    Fault = "gives a device twice"
	WritesNoSpec        Fault = "writes no CDI spec"
	UnqualifiedCDI      Fault = "gives CDI devices that are no qualified names"
	FailsSecondPrepare  Fault = "fails to prepare a second time"
	ChangesAnswer       Fault = "answers differently each time"
	NamesSubrequest     Fault = "names the subrequest"
	PreparesOthers      Fault = "prepares devices of other drivers"
	ReadsOthersConfig   Fault = "reads parameters for other drivers"
	AllowsDoubleUse     Fault = "prepares a device for two claims"
	RefusedTakesOver    Fault = "releases a device when it refuses it to another claim"
	IgnoresUID          Fault = "ignores the UID of a claim"
	AcceptsParameters   Fault = "accepts any parameters"
	PreparesFirstOnly   Fault = "prepares the first claim of a call only"
	FailsWholeCall      Fault = "fails the call for one bad claim"
	OneBadSpoilsAll     Fault = "fails all claims of a call for one bad claim"
	PreparesMissing     Fault = "prepares a claim that does not exist"
	MissingBlocks       Fault = "prepares nothing after a claim that does not exist"
	RefusesConcurrent   Fault = "refuses calls while another one runs"
	RefusesTolerations  Fault = "refuses claims with tolerations"
	RefusesAdmin        Fault = "refuses admin access"
	AdminTakesDevice    Fault = "lets admin access take a device"
	AdminReleasesDevice Fault = "releases the device with admin access"
	RefusesSecondShare  Fault = "refuses a second share"
	WrongShareID        Fault = "gives another share ID"
	OneShareOnly        Fault = "gives one of two shares in a claim"
	ReleasesAllShares   Fault = "releases all shares of a device"
)

// Faults of Unprepare, of restarts, and of what is optional.
const (
	FailsSecondUnprepare Fault = "fails to unprepare a second time"
	FailsUnknown         Fault = "fails to unprepare what it does not know"
	OmitsUnknown         Fault = "omits in the answer what it does not know"
	ReadsDeletedClaim    Fault = "needs the claim to unprepare it"
	LeavesSpec           Fault = "leaves CDI specs"
	LeavesRecord         Fault = "keeps a device in use"
	LosesSpecs           Fault = "loses CDI specs by a restart"
	Forgets              Fault = "forgets claims by a restart"
	Withdraws            Fault = "withdraws allocated devices by a restart"
	StaysAway            Fault = "does not come back"
	ShrinksCapacity      Fault = "publishes less capacity while shares are prepared"
	RepeatsTaint         Fault = "has a taint twice"
	TaintsInFuture       Fault = "has a taint of the future"
	NoTaint              Fault = "does not taint an unhealthy device"
	TaintStays           Fault = "keeps the taint of a healthy device"
	Unpublishes          Fault = "unpublishes an unhealthy device"
	HealthSilent         Fault = "reports no health"
	HealthOther          Fault = "reports the health of a device that it does not publish"
	HealthTwice          Fault = "reports a device twice"
	HealthFuture         Fault = "reports a health of the future"
	HealthValue          Fault = "reports a health that there is not"
	HealthLong           Fault = "reports a message that is too long"
	HealthPartial        Fault = "reports some of its devices"
	HealthOnce           Fault = "serves one health stream"
	HealthUnserved       Fault = "does not serve an older health service that it registers"
	HealthConstant       Fault = "reports each device as healthy"
	HealthNeverBack      Fault = "reports a device as unhealthy forever"
	StatusOther          Fault = "writes the status of another device"
	StatusPartial        Fault = "writes the status of one of two shares"
	NotReady             Fault = "writes that a prepared device is not ready"
	ConditionIncomplete  Fault = "writes a condition without a reason"
	MetadataElsewhere    Fault = "mounts metadata where nobody looks"
	MetadataOther        Fault = "writes metadata of another claim"
	MetadataBroken       Fault = "writes metadata that nobody can decode"
	MetadataEmpty        Fault = "writes metadata without devices"
	MetadataStays        Fault = "leaves metadata files"
)

// Feature is something that a driver may lack.
type Feature string

// Features.
const (
	Health   Feature = "health"
	Status   Feature = "status"
	Metadata Feature = "metadata"
	Shares   Feature = "shares"
	Counters Feature = "counters"
	Taints   Feature = "taints"
	CDI      Feature = "CDI devices"
	V1       Feature = "the v1 service"
)
