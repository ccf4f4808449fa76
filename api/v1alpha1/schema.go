// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Schema is the part of JSON Schema that describes the fields of a NodePolicy. It cannot express constraints between fields or
// those of boards: DecodeNodePolicy may reject a policy that the schema accepts, but never the reverse.
type Schema struct {
	Type                 []string           `json:"type,omitempty"`
	Const                string             `json:"const,omitempty"`
	Enum                 []string           `json:"enum,omitempty"`
	Pattern              string             `json:"pattern,omitempty"`
	Description          string             `json:"description,omitempty"` // describes texts that match the pattern
	Minimum              *int32             `json:"minimum,omitempty"`
	Maximum              *int32             `json:"maximum,omitempty"`
	MaxItems             int                `json:"maxItems,omitempty"`
	Items                *Schema            `json:"items,omitempty"`
	Properties           map[string]*Schema `json:"properties,omitempty"`
	Required             []string           `json:"required,omitempty"`
	PropertyNames        *Schema            `json:"propertyNames,omitempty"`
	AdditionalProperties any                `json:"additionalProperties,omitempty"`
}

// Patterns of the schema in addition to the decoder's.
const (
	quantityPattern    = `^[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$`
	namePattern        = `^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	clientLabelPattern = `^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	offeredProfile     = `^[1-9][0-9]?g\.[1-9][0-9]{0,3}gb(\+me|\+me\.all|\+gfx|-me)?$`
	omittedProfile     = `^([1-9][0-9]?g\.[1-9][0-9]{0,3}gb(\+me)?|\+me)$`
)

// bounds restrict fields, by type and field, to the values that the decoder accepts.
var bounds = map[string]func(*Schema){
	"NodePolicy.rules": func(s *Schema) { s.MaxItems = MaxRules },
	"Rule.pauseClients": func(s *Schema) {
		s.MaxItems = MaxClientLabels
		s.Items.like(clientLabelPattern, "the name of a node label with its domain, such as nvidia.com/gpu.deploy.dcgm")
	},
	"PolicyMetadata.name": func(s *Schema) { s.like(namePattern, "the value of a node label, such as training") },
	"MIGPolicy.profiles": func(s *Schema) {
		s.Items.like(offeredProfile, "a MIG profile, such as 1g.10gb or 1g.10gb+me")
	},
	"MIGPolicy.layout": func(s *Schema) {
		s.PropertyNames.like(offeredProfile, "a MIG profile, such as 1g.10gb or 1g.10gb+me")
		s.AdditionalProperties.(*Schema).Minimum = num(1)
	},
	"PartitionShare.profile": func(s *Schema) {
		s.like(offeredProfile, "a MIG profile, such as 1g.10gb or 1g.10gb+me")
	},
	"PublishPolicy.omitProfiles": func(s *Schema) {
		s.Items.like(omittedProfile, "a MIG profile that is offered unasked, such as 1g.10gb+me, or +me for all of that kind")
	},
	"HealthPolicy.ignoreXIDs": func(s *Schema) { s.Items.Minimum = num(0) },
	"Match.productNames":      func(s *Schema) { s.Items.like(`\S`, "a product as nvidia-smi -L has it") },
	"Match.uuids":             func(s *Schema) { s.Items.like(`^GPU-`, "the UUID of a GPU: GPU-...") },
	"Match.pciAddresses":      func(s *Schema) { s.Items.like(pciAddress.String(), "a PCI address such as 0000:1b:00.0") },
	"Match.deviceIDs": func(s *Schema) {
		s.Items.like(deviceID.String(), "a PCI device ID and the vendor's, such as 0x233010DE, or with the subsystem's, 0x233010DE:0x16C110DE")
	},
	"Match.indexes":          func(s *Schema) { s.Items.Minimum = num(0) },
	"TimeSlicePolicy.shares": func(s *Schema) { s.Minimum, s.Maximum = num(1), num(MaxTimeSliceShares) },
	"MPSPolicy.shares":       func(s *Schema) { s.Minimum, s.Maximum = num(1), num(MaxMPSShares) },
	"CoreCut.minimum":        func(s *Schema) { s.Minimum, s.Maximum = num(1), num(100) },
	"CoreCut.step":           func(s *Schema) { s.Minimum, s.Maximum = num(1), num(100) },
	"CoreCut.default":        func(s *Schema) { s.Minimum, s.Maximum = num(1), num(100) },
}

// enums are the values of enumerated text. Empty text is the default, like a missing field.
var enums = map[reflect.Type][]string{
	reflect.TypeFor[Tier]():               texts(Tiers()),
	reflect.TypeFor[MIGMode]():            texts(MIGModes()),
	reflect.TypeFor[ModeChange]():         texts(ModeChanges()),
	reflect.TypeFor[SharePlacement]():     texts(SharePlacements()),
	reflect.TypeFor[HealthReaction]():     texts(HealthReactions()),
	reflect.TypeFor[Interval]():           texts(Intervals()),
	reflect.TypeFor[Priority]():           texts(Priorities()),
	reflect.TypeFor[PartitionAttribute](): texts(PartitionAttributes()),
	reflect.TypeFor[QuotaCounter]():       texts(QuotaCounters()),
}

// like restricts a text to a pattern, which the description explains.
func (s *Schema) like(pattern, description string) { s.Pattern, s.Description = pattern, description }

func num(n int32) *int32 { return &n }

func texts[T ~string](values []T) []string {
	var list []string
	for _, v := range values {
		list = append(list, string(v))
	}
	return list
}

// NodePolicySchema is the schema of a policy.
func NodePolicySchema() *Schema {
	s := schemaOf(reflect.TypeFor[NodePolicy]())
	s.Properties["apiVersion"] = &Schema{Const: APIVersion}
	s.Properties["kind"] = &Schema{Const: NodePolicyKind}
	s.Required = []string{"apiVersion", "kind"}
	return s
}

func schemaOf(t reflect.Type) *Schema {
	switch {
	case t == reflect.TypeFor[resource.Quantity]():
		return &Schema{Type: []string{"string", "number"}, Pattern: quantityPattern, Description: "a quantity such as 512Mi"}
	case enums[t] != nil:
		return &Schema{Type: []string{"string"}, Enum: enums[t]}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.String:
		return &Schema{Type: []string{"string"}}
	case reflect.Bool:
		return &Schema{Type: []string{"boolean"}}
	case reflect.Int32:
		return &Schema{Type: []string{"integer"}}
	case reflect.Slice:
		return &Schema{Type: []string{"array"}, Items: schemaOf(t.Elem())}
	case reflect.Map:
		return &Schema{Type: []string{"object"}, PropertyNames: &Schema{}, AdditionalProperties: schemaOf(t.Elem())}
	case reflect.Struct:
		return schemaOfStruct(t)
	default:
		panic(fmt.Sprintf("no schema for %s", t)) // for a new field of the API: tests build the schema
	}
}

func schemaOfStruct(t reflect.Type) *Schema {
	s := &Schema{Type: []string{"object"}, Properties: map[string]*Schema{}, AdditionalProperties: false}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "" { // TypeMeta, which is inline
			continue
		}
		field := schemaOf(t.Field(i).Type)
		if narrow := bounds[t.Name()+"."+name]; narrow != nil {
			narrow(field)
		}
		switch t.Field(i).Type {
		case reflect.TypeFor[[]string](), reflect.TypeFor[[]int32]():
			if t == reflect.TypeFor[Match]() {
				field.MaxItems = MaxListed
			}
		}
		s.Properties[name] = field
	}
	return s
}
