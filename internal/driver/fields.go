// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"reflect"
	"slices"
	"strings"
)

// Support says what a driver does with a field of ServerSpec on an existing server.
type Support string

// Values of Support.
const (
	// AppliedLive fields change without a restart. Parameters of a call, such as a grace
	// period, are AppliedLive too.
	AppliedLive Support = "live"
	// AppliedAtRestart fields are listed in Server.Pending until the server is started.
	AppliedAtRestart Support = "at restart"
	// AppliedAtCreation fields never change while the server exists. If users should know
	// that a change has no effect, the field is reported in Server.Refused.
	AppliedAtCreation Support = "at creation"
	// Ignored fields are accepted and have no effect.
	Ignored Support = "ignored"
	// Unsupported fields are refused with ErrUnsupported.
	Unsupported Support = "unsupported"
)

// Field is a driver's declaration about one field of ServerSpec. C has the values that the
// driver compares to find out whether the field changed, such as a server and its spec.
type Field[C any] struct {
	// Name as in the spec of a VirtualMachine, for example "image.checksum".
	Name    string
	Support Support
	// Parts are the fields below Name that the declaration is about. It is about Name
	// itself if there are none. Unsupported covers everything below Name.
	Parts []string
	// Hint completes the error for an Unsupported field: the reason, then the alternative.
	Hint string
	// Differs reports whether the server differs from its spec in this field. Required
	// for AppliedAtRestart.
	Differs func(C) bool
}

// Fields are a driver's declarations about ServerSpec. Every field that users can set has
// to be declared: the contract suite fails on one that is missing.
type Fields[C any] []Field[C]

// FieldDeclarer returns what a driver does with each field of ServerSpec. The keys are the
// names that SpecFields returns. Every driver implements it.
type FieldDeclarer interface {
	SupportedFields() map[string]Support
}

// Support returns the declared support of each field of SpecFields.
func (f Fields[C]) Support() map[string]Support {
	all := map[string]Support{}
	for _, row := range f {
		for _, name := range SpecFields() {
			if row.covers(name) {
				all[name] = row.Support
			}
		}
	}
	return all
}

func (f Field[C]) covers(name string) bool {
	below, isBelow := strings.CutPrefix(name, f.Name+".")
	return name == f.Name && len(f.Parts) == 0 || isBelow && (f.Support == Unsupported || slices.Contains(f.Parts, below))
}

// CheckSupported returns ErrUnsupported for the first unsupported field that spec sets.
func (f Fields[C]) CheckSupported(spec ServerSpec) error {
	set := setFields(spec)
	for _, row := range f {
		if row.Support == Unsupported && slices.ContainsFunc(set, row.covers) {
			return Errorf(ErrUnsupported, "spec.%s: %s", row.Name, row.Hint)
		}
	}
	return nil
}

// Pending returns the names of the fields that wait for a restart, for Server.Pending.
func (f Fields[C]) Pending(change C) []string {
	var names []string
	for _, row := range f {
		if row.Support == AppliedAtRestart && row.Differs(change) {
			names = append(names, row.Name)
		}
	}
	return names
}

// UnsupportedPodFields declares the fields for servers in pods as unsupported, except for
// the fields that the driver supports.
func UnsupportedPodFields[C any](supported ...string) Fields[C] {
	const hint = "this field is only for servers that run in a pod; leave it out"
	rows := Fields[C]{{Name: "evictionPolicy", Support: Unsupported, Hint: "Block is only for servers that run in a pod; use Allow or leave the field out"}}
	walkFields(reflect.ValueOf(Placement{}), "", func(name string, _ reflect.Value) {
		rows = append(rows, Field[C]{Name: name, Support: Unsupported, Hint: hint})
	})
	for _, name := range []string{"ephemeral", "storageClassName"} {
		rows = append(rows, Field[C]{Name: name, Support: Unsupported, Hint: hint})
	}
	return slices.DeleteFunc(rows, func(f Field[C]) bool { return slices.Contains(supported, f.Name) })
}

// CommandFields are the fields that say what a container image runs, and how.
var CommandFields = []string{"command", "args", "env", "workingDir", "user", "init", "stdin", "tty", "sysctls", "files"}

// UnsupportedCommandFields declares CommandFields as unsupported, for a driver that does not run
// container images.
func UnsupportedCommandFields[C any]() Fields[C] {
	const hint = "this field is for container images, which this driver does not run; use driver docker or qemu, or leave it out"
	var rows Fields[C]
	for _, name := range CommandFields {
		rows = append(rows, Field[C]{Name: name, Support: Unsupported, Hint: hint})
	}
	return rows
}

// SpecFields returns the fields of ServerSpec that users can set, by their names in the
// spec of a VirtualMachine: "resource.cpu", "volumes.name", ... The struct tag "spec" has
// the name; a field without the tag is returned by its Go name.
func SpecFields() []string {
	var names []string
	walkFields(reflect.ValueOf(ServerSpec{}), "", func(name string, _ reflect.Value) { names = append(names, name) })
	return names
}

// setFields returns the fields of SpecFields that are not zero in spec, and the lists and
// pointers that contain them.
func setFields(spec ServerSpec) []string {
	var names []string
	walkFields(reflect.ValueOf(spec), "", func(name string, v reflect.Value) {
		if !v.IsZero() {
			names = append(names, name)
		}
	})
	return names
}

// walkFields visits the fields of a struct that users can set. It descends into structs.
func walkFields(v reflect.Value, prefix string, visit func(name string, v reflect.Value)) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		switch tag, tagged := field.Tag.Lookup("spec"); {
		case tag == "-":
		case tag == ",inline":
			walkFields(v.Field(i), prefix, visit)
		case tagged:
			walkField(v.Field(i), prefix+tag, visit)
		default:
			walkField(v.Field(i), prefix+field.Name, visit)
		}
	}
}

// walkField visits a list and each of its elements, and a pointer and the value behind it. In
// place of an empty list or a nil pointer it visits the fields of a zero value. A struct of
// another package, such as a pod's affinity, is one value: drivers declare it as a whole.
func walkField(v reflect.Value, name string, visit func(name string, v reflect.Value)) {
	switch {
	case v.Kind() == reflect.Slice && v.Len() > 0:
		visit(name, v)
		for i := range v.Len() {
			walkField(v.Index(i), name, visit)
		}
	case v.Kind() == reflect.Slice, v.Kind() == reflect.Pointer && v.IsNil():
		walkField(reflect.Zero(v.Type().Elem()), name, visit)
	case v.Kind() == reflect.Pointer:
		visit(name, v)
		walkField(v.Elem(), name, visit)
	case v.Kind() == reflect.Struct && v.Type().PkgPath() == reflect.TypeFor[ServerSpec]().PkgPath() && v.Type() != reflect.TypeFor[Secret]():
		walkFields(v, name+".", visit)
	default:
		visit(name, v)
	}
}
