// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

// As finds an optional interface, such as Identifier, in d or in a driver that d decorates. A
// decorator exposes the driver it wraps by a method Unwrap() Driver.
func As[T any](d Driver) (T, bool) {
	for d != nil {
		if t, ok := d.(T); ok {
			return t, true
		}
		u, ok := d.(interface{ Unwrap() Driver })
		if !ok {
			break
		}
		d = u.Unwrap()
	}
	var none T
	return none, false
}
