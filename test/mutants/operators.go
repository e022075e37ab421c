// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The operators. Each makes only what compiles.
const (
	opNegate  = "negate"  // a condition, == or !=
	opCompare = "compare" // <, <=, > or >=
	opLogic   = "logic"   // && or ||
	opDrop    = "drop"    // a statement
	opReturn  = "return"  // zero values, or nil as the error
	opNumber  = "number"  // an integer or a duration
	opBool    = "bool"    // true or false
	opBranch  = "branch"  // break or continue
	opField   = "field"   // of a struct, which is left out
)

// visitList visits the statements of a block.
func (r *rewriter) visitList(list []ast.Stmt) {
	for _, statement := range list {
		switch s := statement.(type) {
		case *ast.ReturnStmt:
			r.visitReturn(s)
		case *ast.BranchStmt:
			r.visitBranch(s)
		case *ast.ExprStmt:
			if !r.isLog(s.X) {
				r.visitDroppable(s, isCall(s.X))
			}
		case *ast.AssignStmt:
			r.visitDroppable(s, s.Tok != token.DEFINE)
		case *ast.IncDecStmt, *ast.DeferStmt, *ast.GoStmt, *ast.SendStmt:
			r.visitDroppable(s, true)
		default:
			r.visit(s)
		}
	}
}

func isCall(e ast.Expr) bool {
	_, ok := e.(*ast.CallExpr)
	return ok
}

// isLog reports whether an expression writes to the log, which has no mutants.
func (r *rewriter) isLog(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || r.info.Selections[method] == nil {
		return false
	}
	in := r.info.Selections[method].Obj().Pkg()
	return in != nil && in.Path() == "github.com/go-logr/logr"
}

// visitDroppable drops a statement.
func (r *rewriter) visitDroppable(s ast.Stmt, drop bool) {
	if drop {
		if assignment, ok := s.(*ast.AssignStmt); ok {
			r.dropOneOfSeveral(assignment)
		}
		r.insert(s.Pos(), fmt.Sprintf("if !mutant__.Is(%d) { ", r.add(opDrop, s, "")))
	}
	r.visitChildren(s)
	if drop {
		r.insert(s.End(), " }")
	}
}

// dropOneOfSeveral drops each of several assignments in one statement: what it assigned to
// gets its value back.
func (r *rewriter) dropOneOfSeveral(s *ast.AssignStmt) {
	if len(s.Lhs) == 1 || len(s.Lhs) != len(s.Rhs) {
		return
	}
	for n, to := range s.Lhs {
		if r.code(to) == "_" {
			continue
		}
		number := r.add(opDrop, s, "without "+r.code(to)+" = "+r.code(s.Rhs[n]))
		r.insert(s.Pos(), fmt.Sprintf("if mutant__.Is(%d) { mutantkeep__ := %s; %s; %s = mutantkeep__ } else ", number, r.code(to), r.code(s), r.code(to)))
	}
}

// visitReturn returns zero values, and nil in place of an error alone.
func (r *rewriter) visitReturn(s *ast.ReturnStmt) {
	if len(s.Results) > 0 && !r.isBoolResult(s) && !r.areZero(s.Results) {
		zeros := make([]string, len(r.results))
		for n, result := range r.results {
			zeros[n] = "*new(" + result + ")"
		}
		r.insert(s.Pos(), fmt.Sprintf("if mutant__.Is(%d) { return %s }; ", r.add(opReturn, s, "zero values"), strings.Join(zeros, ", ")))
	}
	if last := len(s.Results) - 1; last > 0 && r.results[last] == "error" && !r.isZero(s.Results[last]) && !r.areZero(s.Results[:last]) {
		others := make([]string, last)
		for n, e := range s.Results[:last] {
			others[n] = r.code(e)
		}
		r.insert(s.Pos(), fmt.Sprintf("if mutant__.Is(%d) { return %s, nil }; ", r.add(opReturn, s, "nil as the error"), strings.Join(others, ", ")))
	}
	for _, e := range s.Results {
		if r.isBool(e) {
			r.visitCondition(e)
		} else {
			r.visit(e)
		}
	}
}

// isBoolResult reports whether a function returns one bool, which is negated instead.
func (r *rewriter) isBoolResult(s *ast.ReturnStmt) bool {
	return len(s.Results) == 1 && len(r.results) == 1 && r.isBool(s.Results[0])
}

func (r *rewriter) areZero(list []ast.Expr) bool {
	return !slices.ContainsFunc(list, func(e ast.Expr) bool { return !r.isZero(e) })
}

// isZero reports whether an expression is certainly the zero value.
func (r *rewriter) isZero(e ast.Expr) bool {
	value := r.info.Types[e]
	if literal, ok := e.(*ast.CompositeLit); ok {
		_, isStruct := value.Type.Underlying().(*types.Struct)
		return isStruct && len(literal.Elts) == 0
	}
	if value.Value == nil {
		return value.IsNil()
	}
	switch value.Value.Kind() {
	case constant.Bool:
		return !constant.BoolVal(value.Value)
	case constant.String:
		return constant.StringVal(value.Value) == ""
	case constant.Int, constant.Float:
		return constant.Sign(value.Value) == 0
	default:
		return false
	}
}

// visitBranch exchanges break and continue.
func (r *rewriter) visitBranch(s *ast.BranchStmt) {
	if s.Label != nil || r.loops == 0 || s.Tok != token.BREAK && s.Tok != token.CONTINUE {
		return
	}
	other := token.BREAK
	if s.Tok == token.BREAK {
		other = token.CONTINUE
	}
	r.insert(s.Pos(), fmt.Sprintf("if mutant__.Is(%d) { %s }; ", r.add(opBranch, s, other.String()), other))
}

// isBool reports whether an expression's type is bool, or untyped as a comparison's is.
func (r *rewriter) isBool(e ast.Expr) bool {
	basic, ok := r.info.Types[e].Type.(*types.Basic)
	return ok && basic.Info()&types.IsBoolean != 0
}

// visitCondition visits an expression that decides something. It is negated, unless
// another operator does that to its parts.
func (r *rewriter) visitCondition(e ast.Expr) {
	switch x := ast.Unparen(e).(type) {
	case *ast.BinaryExpr:
		r.visitExpr(x)
		return
	case *ast.UnaryExpr:
		r.visitExpr(x)
		return
	}
	if r.info.Types[e].Value != nil || !r.isBool(e) {
		r.visitExpr(e)
		return
	}
	r.negate(e, "!"+r.code(e), func() { r.visitExpr(e) })
}

func (r *rewriter) negate(e ast.Expr, mutated string, visitParts func()) {
	number := r.add(opNegate, e, mutated)
	r.insert(e.Pos(), "((")
	visitParts()
	r.insert(e.End(), fmt.Sprintf(") != mutant__.Is(%d))", number))
}

func (r *rewriter) visitExpr(e ast.Expr) {
	value := r.info.Types[e]
	switch {
	case value.IsType():
		return
	case value.Value != nil:
		r.visitConstant(e, value, func(string) bool { return true })
		return
	}
	switch x := e.(type) {
	case *ast.FuncLit:
		r.visitBody(x.Type, x.Body)
	case *ast.UnaryExpr:
		if x.Op == token.NOT {
			r.visitCondition(x.X)
			return
		}
		r.visitChildren(x)
	case *ast.BinaryExpr:
		r.visitBinary(x)
	case *ast.KeyValueExpr:
		r.visitField(x)
	case *ast.CallExpr:
		if !r.isLog(x) {
			r.visitChildren(x)
		}
	case *ast.SelectorExpr:
		r.visit(x.X)
	default:
		r.visitChildren(x)
	}
}

// visitField leaves out a field of a struct.
func (r *rewriter) visitField(e *ast.KeyValueExpr) {
	value := r.info.Types[e.Value]
	key, ok := e.Key.(*ast.Ident)
	if !ok || value.Value != nil && value.Value.Kind() != constant.String || r.isZero(e.Value) {
		r.visit(e.Value)
		return
	}
	field, ok := r.info.Uses[key].(*types.Var)
	if !ok || !field.IsField() || !types.Identical(field.Type(), value.Type) || r.isUntypedString(e.Value) {
		r.visit(e.Value)
		return
	}
	number := r.add(opField, e, "")
	r.insert(e.Value.Pos(), fmt.Sprintf("mutant__.Field(%d, ", number))
	r.visit(e.Value)
	r.insert(e.Value.End(), ")")
}

// isUntypedString reports whether a string has its type from the field that it is assigned to.
func (r *rewriter) isUntypedString(e ast.Expr) bool {
	_, isBasic := r.info.Types[e].Type.(*types.Basic)
	_, isLiteral := e.(*ast.BasicLit)
	return isLiteral && !isBasic
}

func (r *rewriter) visitBinary(e *ast.BinaryExpr) {
	with := func(operator token.Token) string { return r.code(e.X) + " " + operator.String() + " " + r.code(e.Y) }
	switch e.Op {
	case token.LAND:
		r.exchangeLogic(e, with(token.LOR))
	case token.LOR:
		r.exchangeLogic(e, with(token.LAND))
	case token.EQL:
		r.negate(e, with(token.NEQ), func() { r.visitOperands(e, "plus") })
	case token.NEQ:
		r.negate(e, with(token.EQL), func() { r.visitOperands(e, "plus") })
	case token.LSS:
		r.compare(e, with(token.LEQ), with(token.GEQ), "minus")
	case token.LEQ:
		r.compare(e, with(token.LSS), with(token.GTR), "plus")
	case token.GTR:
		r.compare(e, with(token.GEQ), with(token.LEQ), "plus")
	case token.GEQ:
		r.compare(e, with(token.GTR), with(token.LSS), "minus")
	default:
		r.visitChildren(e)
	}
}

// exchangeLogic exchanges && and ||: by De Morgan, a || b is !(!a && !b), which evaluates
// b in the same cases.
func (r *rewriter) exchangeLogic(e *ast.BinaryExpr, mutated string) {
	if !r.isBool(e) || !r.isBool(e.X) || !r.isBool(e.Y) {
		r.visitChildren(e)
		return
	}
	is := fmt.Sprintf(") != mutant__.Is(%d)", r.add(opLogic, e, mutated))
	r.insert(e.Pos(), "(((")
	r.visitCondition(e.X)
	r.insert(e.X.End(), is)
	r.insert(e.Y.Pos(), "(")
	r.visitCondition(e.Y)
	r.insert(e.End(), is+is+")")
}

// compare moves the boundary of a comparison, and negates it.
func (r *rewriter) compare(e *ast.BinaryExpr, moved, negated, direction string) {
	if !r.isBool(e) {
		r.visitChildren(e)
		return
	}
	first := r.add(opCompare, e, moved)
	r.add(opCompare, e, negated)
	r.insert(e.Pos(), fmt.Sprintf("mutant__.Compare(%d, %q, ", first, e.Op))
	r.replace(e.OpPos, e.Op.String(), ",")
	r.visitOperands(e, direction)
	r.insert(e.End(), ")")
}

// visitOperands visits the operands of a comparison. A constant to compare with changes
// in one direction alone, since the other is what another operator makes.
func (r *rewriter) visitOperands(e *ast.BinaryExpr, direction string) {
	for _, operand := range []ast.Expr{e.X, e.Y} {
		if value := r.info.Types[operand]; value.Value != nil {
			r.visitConstant(operand, value, func(change string) bool { return change == direction })
		} else {
			r.visit(operand)
		}
	}
}

// visitConstant changes an integer or a duration by one unit and to 0, and inverts a bool.
func (r *rewriter) visitConstant(e ast.Expr, value types.TypeAndValue, allowed func(change string) bool) {
	if value.Value.Kind() == constant.Bool && r.isBool(e) {
		inverted := constant.MakeBool(!constant.BoolVal(value.Value))
		r.insert(e.Pos(), "(")
		r.insert(e.End(), fmt.Sprintf(" != mutant__.Is(%d))", r.add(opBool, e, inverted.String())))
		return
	}
	name, isDuration := integerType(value.Type)
	if name == "" || value.Value.Kind() != constant.Int {
		return
	}
	n, ok := constant.Int64Val(value.Value)
	if !ok {
		return
	}
	var numbers []string
	first := r.before + len(r.mutants) + 1
	for _, other := range otherNumbers(n, isDuration, allowed) {
		if other < 0 && strings.HasPrefix(name, "u") {
			continue
		}
		text := strconv.FormatInt(other, 10)
		numbers = append(numbers, text)
		if isDuration {
			text = time.Duration(other).String()
		}
		r.add(opNumber, e, text)
	}
	if len(numbers) == 0 {
		return
	}
	r.usesTime = r.usesTime || isDuration
	r.insert(e.Pos(), fmt.Sprintf("mutant__.Number[%s](%d, ", name, first))
	r.insert(e.End(), ", "+strings.Join(numbers, ", ")+")")
}

// integerType returns how the rewritten code names a type of numbers, or "" for an
// enumeration and others.
func integerType(t types.Type) (name string, isDuration bool) {
	switch t := types.Unalias(t).(type) {
	case *types.Basic:
		if t.Info()&types.IsInteger != 0 && t.Info()&types.IsUntyped == 0 {
			return t.Name(), false
		}
	case *types.Named:
		if object := t.Obj(); object.Pkg() != nil && object.Pkg().Path() == "time" && object.Name() == "Duration" {
			return "mutanttime__.Duration", true
		}
	}
	return "", false
}

// otherNumbers returns what a constant becomes. A duration changes by a second or, if it
// has no whole seconds, by a millisecond or nanosecond.
func otherNumbers(n int64, isDuration bool, allowed func(change string) bool) (out []int64) {
	unit := int64(1)
	for _, larger := range []time.Duration{time.Millisecond, time.Second} {
		if isDuration && n != 0 && n%int64(larger) == 0 {
			unit = int64(larger)
		}
	}
	for _, change := range []struct {
		name string
		to   int64
	}{{"plus", n + unit}, {"minus", n - unit}, {"zero", 0}} {
		if allowed(change.name) && change.to != n && !slices.Contains(out, change.to) {
			out = append(out, change.to)
		}
	}
	return out
}
