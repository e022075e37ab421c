// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strconv"
)

// activePath is the import path of the package that chooses the mutant. The rewritten
// code knows it by a name that no other code has.
const activePath = "cloudnative.tw/drover/test/mutants/active"

// rewriter makes the mutants of a file. It adds edits in the order in which what encloses
// comes before what is enclosed, and closes in the opposite order, so that edits nest.
type rewriter struct {
	*source
	edits    []edit
	mutants  []Mutant
	before   int // mutants of earlier files
	usesTime bool

	function string
	results  []string // types of the enclosing function's results, as in the source
	loops    int      // loops around the statement, in this function
}

// edit puts text in place of the code from one offset to another, which may be the same.
type edit struct {
	from, to int
	text     string
}

// rewrite returns the file with its mutants, of which none is active at first. before is
// the number of mutants in other files.
func rewrite(s *source, before int) ([]byte, []Mutant) {
	r := &rewriter{source: s, before: before}
	for _, declaration := range s.tree.Decls {
		if function, ok := declaration.(*ast.FuncDecl); ok && function.Body != nil {
			r.function = nameOf(function)
			r.visitBody(function.Type, function.Body)
		}
	}
	if len(r.mutants) == 0 {
		return s.text, nil
	}
	imports := "; import mutant__ " + strconv.Quote(activePath)
	if r.usesTime {
		imports += `; import mutanttime__ "time"`
	}
	r.insert(s.tree.Name.End(), imports) // in the same line, so that lines stay as they are
	return r.apply(), r.mutants
}

// nameOf returns a function's name, behind its receiver's type.
func nameOf(function *ast.FuncDecl) string {
	if function.Recv == nil {
		return function.Name.Name
	}
	receiver := function.Recv.List[0].Type
	if pointer, ok := receiver.(*ast.StarExpr); ok {
		receiver = pointer.X
	}
	return types.ExprString(receiver) + "." + function.Name.Name
}

func (r *rewriter) apply() []byte {
	slices.SortStableFunc(r.edits, func(a, b edit) int { return cmp.Compare(a.from, b.from) })
	var out bytes.Buffer
	at := 0
	for _, e := range r.edits {
		out.Write(r.text[at:e.from])
		out.WriteString(e.text)
		at = e.to
	}
	out.Write(r.text[at:])
	return out.Bytes()
}

func (r *rewriter) insert(at token.Pos, text string) {
	offset := r.file.Offset(at)
	r.edits = append(r.edits, edit{offset, offset, text})
}

func (r *rewriter) replace(at token.Pos, old, text string) {
	offset := r.file.Offset(at)
	r.edits = append(r.edits, edit{offset, offset + len(old), text})
}

func (r *rewriter) code(n ast.Node) string {
	return string(r.text[r.file.Offset(n.Pos()):r.file.Offset(n.End())])
}

// add adds a mutant and returns its number.
func (r *rewriter) add(operator string, original ast.Node, mutated string) int {
	number := r.before + len(r.mutants) + 1
	r.mutants = append(r.mutants, Mutant{
		Number: number, File: r.name, Line: r.file.Line(original.Pos()), Function: r.function,
		Operator: operator, Original: shorten(r.code(original)), Mutated: shorten(mutated),
	})
	return number
}

// visitBody visits a function's body.
func (r *rewriter) visitBody(signature *ast.FuncType, body *ast.BlockStmt) {
	results, loops := r.results, r.loops
	r.results, r.loops = r.resultTypes(signature), 0
	r.visitList(body.List)
	r.results, r.loops = results, loops
}

func (r *rewriter) resultTypes(signature *ast.FuncType) (out []string) {
	if signature.Results == nil {
		return nil
	}
	for _, field := range signature.Results.List {
		for range max(1, len(field.Names)) {
			out = append(out, r.code(field.Type))
		}
	}
	return out
}

// visit visits what is below a node.
func (r *rewriter) visit(node ast.Node) {
	switch n := node.(type) {
	case *ast.BlockStmt:
		r.visitList(n.List)
	case *ast.IfStmt:
		r.visitAll(n.Init)
		r.visitCondition(n.Cond)
		r.visitAll(n.Body, n.Else)
	case *ast.ForStmt:
		r.visitAll(n.Init)
		if n.Cond != nil {
			r.visitCondition(n.Cond)
		}
		r.visitAll(n.Post)
		r.visitLoop(n.Body)
	case *ast.RangeStmt:
		r.visit(n.X)
		r.visitLoop(n.Body)
	case *ast.SwitchStmt:
		r.visitAll(n.Init)
		r.visitSwitch(n)
	case *ast.TypeSwitchStmt:
		r.visitAll(n.Init, n.Assign)
		for _, clause := range n.Body.List {
			r.visitList(clause.(*ast.CaseClause).Body)
		}
	case *ast.CommClause:
		r.visitAll(n.Comm)
		r.visitList(n.Body)
	case *ast.DeclStmt, *ast.BranchStmt: // a constant stays one
	case ast.Expr:
		r.visitExpr(n)
	default:
		r.visitChildren(n)
	}
}

// visitAll visits the nodes that are there.
func (r *rewriter) visitAll(nodes ...ast.Node) {
	for _, n := range nodes {
		if n != nil {
			r.visit(n)
		}
	}
}

func (r *rewriter) visitChildren(node ast.Node) {
	ast.Inspect(node, func(child ast.Node) bool {
		if child == nil || child == node {
			return child != nil
		}
		r.visit(child)
		return false
	})
}

func (r *rewriter) visitLoop(body *ast.BlockStmt) {
	r.loops++
	r.visit(body)
	r.loops--
}

// visitSwitch visits the cases of a switch. Without a tag each is a condition; with one
// they are constants in most switches, and stay so.
func (r *rewriter) visitSwitch(n *ast.SwitchStmt) {
	if n.Tag != nil {
		r.visit(n.Tag)
	}
	for _, statement := range n.Body.List {
		clause := statement.(*ast.CaseClause)
		for _, condition := range clause.List {
			if n.Tag == nil {
				r.visitCondition(condition)
			}
		}
		r.visitList(clause.Body)
	}
}
