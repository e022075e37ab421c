// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lent has types that others embed.
package lent

// Methods has 20 methods that others can call.
type Methods struct{}

func (Methods) A()      {}
func (Methods) B()      {}
func (Methods) C()      {}
func (Methods) D()      {}
func (Methods) E()      {}
func (Methods) F()      {}
func (Methods) G()      {}
func (Methods) H()      {}
func (Methods) I()      {}
func (Methods) J()      {}
func (Methods) K()      {}
func (Methods) L()      {}
func (Methods) M()      {}
func (Methods) N()      {}
func (Methods) O()      {}
func (Methods) P()      {}
func (Methods) Q()      {}
func (Methods) R()      {}
func (Methods) S()      {}
func (Methods) T()      {}
func (Methods) hidden() {}

// Reader has one.
type Reader interface{ Read() }
